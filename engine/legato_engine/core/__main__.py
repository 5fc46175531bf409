"""The core process: `python -m legato_engine.core FD PARENT`, started by the server, never by hand.

It is the composition root: only here are model, scheduler, link and loop put together.
"""

import faulthandler
import gc
import os
import signal
import socket
import sys
import time

from legato_engine.core.channel import ServerChannel, ServerGone
from legato_engine.core.frames import Loading, NotStarting, Start
from legato_engine.core.reporting.heartbeat import Heartbeat, Pulse
from legato_engine.errors import EngineError
from legato_protocol.process.parent import die_with_parent
from legato_protocol.settings.flags import SettingsError

_EXIT_PERMANENT = 2
# Spins of an idle OpenMP thread before it sleeps: tens of microseconds, longer than the pause between two kernels.
# libgomp's default, milliseconds, makes steps many times as long when other programs use the cores. torch reads it when
# it is loaded.
_SPINS = "10000"
# More objects than a step of a thousand sequences holds. With Python's default of 700, garbage collections that free
# nothing take a fifth of the loop's time.
_YOUNG = 50_000
_NO_LOG = "99"  # level of messages that torch's profiler writes to stderr


def main() -> int:
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    if not die_with_parent(parent):
        return 1
    # Only the server acts on Ctrl-C in a terminal. Not a new session: niceness has no effect between sessions.
    os.setpgid(0, 0)
    faulthandler.enable()
    os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
    os.environ.setdefault("KINETO_LOG_LEVEL", _NO_LOG)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the server decides when the core ends
    channel = ServerChannel(socket.socket(fileno=descriptor))
    try:
        start = channel.wait()
        assert isinstance(start, Start)
        pulse = Pulse()
        Heartbeat(channel, pulse, min(1.0, start.settings.core_silence / 5)).start()
        return _serve(channel, start, pulse)
    except ServerGone:
        return 0


def _serve(channel: ServerChannel, start: Start, pulse: Pulse) -> int:
    channel.send(Loading("loading", 0.0))
    from legato_engine.core import assembly  # torch is loaded here: after the heartbeat has started
    from legato_engine.core.loop import Core
    from legato_engine.transfer.link import LinkError

    def progress(phase: str, share: float) -> None:
        pulse.progress()
        channel.send(Loading(phase, share))

    try:
        parts, ready = assembly.load(start, progress, time.monotonic)
    except (EngineError, LinkError, SettingsError) as error:
        channel.send(NotStarting(str(error)))
        return _EXIT_PERMANENT
    gc.freeze()  # torch and the model stay: a collection that walks them stops all sequences for 0.1 s
    gc.set_threshold(_YOUNG)
    pulse.end()
    channel.send(ready)
    try:
        Core(channel, parts, pulse).run()
    finally:
        if parts.agent is not None:
            parts.agent.close()
        parts.slices.close()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # UCX and torch own threads that may not end by themselves
