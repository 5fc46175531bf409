"""The entry point of a worker: one call, from settings to exit code."""

import asyncio
import sys
from collections.abc import Callable

import uvloop

from legato_engine.errors import EngineError
from legato_engine.server import core_link
from legato_engine.server.worker import Resolve, WorkerServer
from legato_engine.settings import WorkerSettings
from legato_protocol.process import open_files
from legato_protocol.process.parent import die_with_parent
from legato_protocol.settings.flags import SettingsError


def run(settings: WorkerSettings, resolve: Resolve) -> int:
    """Serves until stopped. `resolve` returns the path for the model's name. Exit code 2: the start failed for good."""
    if settings.parent and not die_with_parent(settings.parent):
        return 1
    log = logger(settings.role)
    try:
        open_files.raise_limit()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, resolve, log))
    except (EngineError, SettingsError) as error:
        log("ERROR", str(error))
        return 2
    log("INFO", "stopped")
    return 0


async def _serve(settings: WorkerSettings, resolve: Resolve, log: Callable[[str, str], None]) -> None:
    worker = WorkerServer(settings, resolve, core_link.launch, log)
    worker.catch_signals()
    await worker.run()


def logger(role: str) -> Callable[[str, str], None]:
    """A logger of plain lines on stderr."""

    def log(level: str, message: str) -> None:
        print(f"{level} worker[{role}] {message}", file=sys.stderr, flush=True)

    return log
