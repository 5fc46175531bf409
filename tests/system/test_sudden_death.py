"""`legato up` is killed. By its name this file is the last of those that share the service, which it ends."""

import signal
from typing import Any

import psutil


def test_nothing_survives_the_death_of_legato_up(service: Any, shared: Any) -> None:
    shared.forget()
    tree = psutil.Process(service.process.pid).children(recursive=True)
    assert len(tree) >= 5  # gateway, and two workers of a server and a core
    service.process.send_signal(signal.SIGKILL)
    service.process.wait()
    _, alive = psutil.wait_procs(tree, timeout=60)
    assert not alive
