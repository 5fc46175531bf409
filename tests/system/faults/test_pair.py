"""One prefill and one decode worker: one dies or hangs at every stage, and its reader does not notice."""

import signal
from collections.abc import Callable
from typing import Any

import pytest

STAGES = ["queued", "prefilling", "pushing", "handed off", "decoding"]
ROLES = ["prefill", "decode"]


@pytest.fixture
def pair(service: Any) -> Any:
    """One prefill and one decode worker: what a dead one had to do waits for its successor."""
    service.scale("decode", 1)
    return service


@pytest.mark.parametrize("role", ROLES)  # by turns: one that dies again and again starts later each time
@pytest.mark.parametrize("stage", STAGES)
def test_killing_a_worker_disturbs_no_stream(
    pair: Any, undisturbed: list[Any], stopped: Callable[..., Any], role: str, stage: str
) -> None:
    round = stopped(pair, role, stage, "kill")
    round.signal(signal.SIGKILL)
    round.finish(undisturbed)
    pair.until_connected(round.victim, not_epoch=round.epochs[round.victim])
    pair.until_idle()


def test_the_only_decode_worker_hangs_and_goes_on(
    pair: Any, undisturbed: list[Any], stopped: Callable[..., Any]
) -> None:
    round = stopped(pair, "decode", "decoding", "hang alone")
    pair.until(lambda: pair.worker(round.victim)["connection"] == "hung", "the gateway has given it up")
    round.signal(signal.SIGCONT)
    round.finish(undisturbed)
    pair.until_idle()
    assert pair.epoch(round.victim) == round.epochs[round.victim]
