"""One prefill and one decode worker: one dies at a stage of a request, and its reader does not notice.

The relay's random schedules (tests/gateway/relay/test_schedules.py) have workers die at every stage; here are those at
which real processes and their memory are concerned in different ways.
"""

import signal
from collections.abc import Callable
from typing import Any


def test_killing_a_worker_disturbs_no_stream(service: Any, undisturbed: list[Any], stopped: Callable[..., Any]) -> None:
    """While KV is written into its memory. Work of the dead worker waits for its successor."""
    round = stopped("decode", "pushing")
    round.signal(signal.SIGKILL)
    round.finish(undisturbed)
    service.until_connected(round.victim, not_epoch=round.epochs[round.victim])
    service.until_idle()
