"""One prefill and two decode workers: one hangs, dies or is drained, and its reader does not notice."""

import signal
from collections.abc import Callable
from typing import Any

import pytest
from answers import assert_same

STAGES = ["queued", "prefilling", "pushing", "handed off", "decoding"]
ROLES = ["prefill", "decode"]


@pytest.fixture
def trio(service: Any) -> Any:
    """One prefill worker and two decode workers."""
    service.scale("decode", 2)
    return service


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("role", ROLES)
def test_a_worker_that_hangs_and_wakes_up_late_disturbs_no_stream(
    trio: Any, undisturbed: list[Any], stopped: Callable[..., Any], role: str, stage: str
) -> None:
    """It wakes up while others compute what it had, and would go on with it."""
    round = stopped(trio, role, stage, "hang")
    trio.until(lambda: trio.worker(round.victim)["connection"] == "hung", "the gateway has given it up")
    if (role, stage) == ("prefill", "pushing"):
        trio.until(lambda: round.receiver_gave_up, "blocks it may still write to are kept away")
    round.signal(signal.SIGCONT)
    round.finish(undisturbed)
    trio.until_connected(round.victim)
    trio.until_idle()
    epochs = {worker["worker"]: worker["epoch"] for worker in trio.workers()}
    assert epochs == round.epochs, "a worker was replaced"


def test_a_worker_that_hangs_for_good_is_replaced(
    trio: Any, undisturbed: list[Any], stopped: Callable[..., Any]
) -> None:
    """What it might still write to comes back: its peer closes the connection when the lease is over."""
    round = stopped(trio, "prefill", "pushing", "hang for good")
    round.finish(undisturbed)
    trio.until_connected(round.victim, not_epoch=round.epochs[round.victim])
    trio.until_idle()
    assert trio.epoch(round.receiver) == round.epochs[round.receiver]


@pytest.mark.parametrize("stage", ["pushing", "decoding"])
def test_sequences_of_a_dead_decode_worker_go_on_at_the_other(
    trio: Any, undisturbed: list[Any], stopped: Callable[..., Any], stage: str
) -> None:
    round = stopped(trio, "decode", stage, "survive")
    round.signal(signal.SIGKILL)
    (survivor,) = {worker["worker"] for worker in trio.workers("decode")} - {round.victim}
    round.finish(undisturbed)
    assert round.record()["decode"] == survivor
    assert trio.epoch(survivor) == round.epochs[survivor]
    trio.until_connected(round.victim, not_epoch=round.epochs[round.victim])
    trio.until_idle()


def test_draining_moves_running_sequences(trio: Any) -> None:
    """Scale 2 → 1 under load: sequences move by hand-off, none fails, none is recomputed."""
    ask = {"max_tokens": 100, "temperature": 0, "logprobs": 2, "extra_body": {"ignore_eos": True}}
    expected = [trio.stream(f"Story {i}:", **ask) for i in range(4)]
    for stream in expected:
        stream.result()
    seen = {record["id"] for record in trio.state()["requests"]}
    streams = [trio.stream(f"Story {i}:", **ask) for i in range(4)]
    trio.until(lambda: all(s.chunks > 5 for s in streams), "all are decoding")
    assert all(worker["running"] for worker in trio.workers("decode"))
    assert trio.command("scale", "decode", "1").returncode == 0
    for found, undisturbed in zip(streams, expected, strict=True):
        assert_same(found, undisturbed)
    trio.until(lambda: len(trio.workers("decode")) == 1, "the drained worker is gone")
    trio.until_idle()
    moves = {r["id"]: _moves(r) for r in trio.state()["requests"] if r["id"] not in seen}
    assert len(moves) == 4
    assert any(moves.values()), "no sequence moved from decode worker to decode worker"
    attempts = {r["id"]: r["attempt"] for r in trio.state()["requests"] if r["id"] in moves}
    assert attempts == {id: 1 + count for id, count in moves.items()}, "a sequence was recomputed"


def _moves(record: dict[str, Any]) -> int:
    return sum("decode" in handoff["source"] for handoff in record["handoffs"])


def test_a_receiver_that_dies_before_it_tells_of_its_commit_leaves_no_stream_waiting(trio: Any) -> None:
    """Its server is stopped while its core takes sequences over, and both die once the sender has let them go."""
    ask = {"max_tokens": 150, "temperature": 0, "logprobs": 2, "extra_body": {"ignore_eos": True}}
    calm = trio.stream("A story that moves:", **ask)
    assert calm.result()
    trio.until_idle()
    earlier = {record["id"] for record in trio.state()["requests"]}
    stream = trio.stream("A story that moves:", **ask)
    trio.until(lambda: stream.chunks > 5, "it is decoding")
    (record,) = [record for record in trio.state()["requests"] if record["id"] not in earlier]
    source = record["decode"]
    (receiver,) = {worker["worker"] for worker in trio.workers("decode")} - {source}
    epoch, processes = trio.epoch(receiver), trio.processes(receiver)
    handed_over = trio.told_by(source)["totals"]["sent_handoffs"]
    trio.drain(source, True)
    try:
        trio.until(lambda: trio.record(record["id"])["stage"] == "migrating", "it migrates", pause=0.002)
        processes[0].send_signal(signal.SIGSTOP)
        trio.until(lambda: trio.told_by(source)["totals"]["sent_handoffs"] > handed_over, "the sender has let it go")
        for process in processes:
            process.kill()
        assert_same(stream, calm)
    finally:
        trio.drain(source, False)
    assert trio.record(record["id"])["attempt"] > 2, "the fault did not happen: it went on at the receiver"
    trio.until_connected(receiver, not_epoch=epoch)
    trio.until_idle()
