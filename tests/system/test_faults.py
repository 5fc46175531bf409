"""Workers die or hang at every stage of a request, and its reader does not notice."""

import signal
from collections.abc import Callable
from typing import Any

import pytest

STAGES = ["queued", "prefilling", "pushing", "handed off", "decoding"]
PREFILL, DECODE = "test-prefill-0", "test-decode-0"
GREEDY = {"temperature": 0}
SEEDED = {"temperature": 0.8, "seed": 7, "top_p": 0.9}
TIE = 2e-3  # logprobs closer than this are one value in float32 sums of another order


@pytest.fixture(scope="module")
def service(start: Callable[..., Any]) -> Any:
    return start(chunk=64)


@pytest.fixture(scope="module")
def prompts(service: Any) -> dict[str, str]:
    story = " ".join(f"Chapter {i}: the fox counted {i * 37 % 101} stones." for i in range(70))
    return {"greedy": "Greedy. " + story, "seeded": "Seeded. " + story, "filler": "Filler. " + story}


@pytest.fixture(scope="module")
def undisturbed(service: Any, prompts: dict[str, str]) -> dict[str, Any]:
    streams = {
        "greedy": service.stream(prompts["greedy"], logprobs=2, **GREEDY),
        "seeded": service.stream(prompts["seeded"], **SEEDED),
    }
    for stream in streams.values():
        assert stream.result()
    return streams


def stage_reached(service: Any, stage: str, streams: list[Any]) -> bool:
    if stage == "handed off":
        return any(s.started.is_set() for s in streams)
    if stage == "decoding":
        return all(s.chunks > 5 for s in streams)
    prefill, decode = service.worker(PREFILL), service.worker(DECODE)
    if stage == "queued":
        return bool(prefill.get("waiting"))
    if stage == "prefilling":
        return bool(prefill.get("running"))
    return bool(prefill.get("running")) and bool(
        decode.get("used_blocks")
    )  # the grant is there: blocks are on their way


def assert_same(found: Any, expected: Any) -> None:
    """The same text; for greedy streams a first difference is allowed where the logits prove a tie."""
    if found.result() == expected.text:
        return
    assert expected.logprobs, f"{found.text!r} is not {expected.text!r}"
    ours, theirs = found.logprobs, expected.logprobs
    first = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if _sampled(a) != _sampled(b))
    first_best, second = sorted(theirs[first].values(), reverse=True)[:2]
    assert first_best - second < TIE, f"not a tie at token {first}: {theirs[first]} and {ours[first]}"


def _sampled(top: dict[str, float]) -> str:
    """Greedy takes the best alternative."""
    return max(top, key=lambda token: top[token])


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("victim", [PREFILL, DECODE])
def test_killing_a_worker_disturbs_no_stream(
    service: Any, prompts: dict[str, str], undisturbed: dict[str, Any], victim: str, stage: str
) -> None:
    service.until_connected(PREFILL)
    service.until_connected(DECODE)
    service.until_idle()
    epoch = service.epoch(victim)
    salt = {"extra_body": {"cache_salt": f"{victim} {stage}"}}  # nothing of an earlier round is in a cache
    streams = [
        service.stream(prompts["greedy"], logprobs=2, **GREEDY, **salt),
        service.stream(prompts["seeded"], **SEEDED, **salt),
    ]
    service.until(lambda: stage_reached(service, stage, streams), f"a request is {stage}", pause=0.002)
    service.signal(victim, signal.SIGKILL)
    assert_same(streams[0], undisturbed["greedy"])
    assert_same(streams[1], undisturbed["seeded"])
    service.until_connected(victim, not_epoch=epoch)
    service.until_idle()


@pytest.mark.parametrize("stage", ["pushing", "decoding"])
@pytest.mark.parametrize("victim", [PREFILL, DECODE])
def test_a_worker_that_hangs_and_wakes_up_late_disturbs_no_stream(
    service: Any, prompts: dict[str, str], undisturbed: dict[str, Any], victim: str, stage: str
) -> None:
    service.until_connected(PREFILL)
    service.until_connected(DECODE)
    service.until_idle()
    salt = {"extra_body": {"cache_salt": f"hang {victim} {stage}"}}
    streams = [
        service.stream(prompts["greedy"], logprobs=2, **GREEDY, **salt),
        service.stream(prompts["seeded"], **SEEDED, **salt),
    ]
    service.until(lambda: stage_reached(service, stage, streams), f"a request is {stage}", pause=0.002)
    service.signal(victim, signal.SIGSTOP)
    service.until(
        lambda: all(s.done.is_set() for s in streams) or service.worker(victim).get("connection") != "connected",
        "the gateway has noticed, or did not have to",
    )
    for process in service.processes(victim):
        process.send_signal(signal.SIGCONT)
    assert_same(streams[0], undisturbed["greedy"])
    assert_same(streams[1], undisturbed["seeded"])
    service.until_connected(victim)
    service.until_idle()


def test_draining_moves_running_sequences(start: Callable[..., Any], prompts: dict[str, str]) -> None:
    """Scale 2 → 1 under load: sequences move by hand-off, none fails, none is recomputed."""
    service = start(chunk=512)
    assert service.command("scale", "decode", "2").returncode == 0
    service.until(lambda: len(service.workers("decode")) == 2, "both decode workers are there")
    ask = {"max_tokens": 100, "temperature": 0, "logprobs": 2, "extra_body": {"ignore_eos": True}}
    expected = [service.stream(f"Story {i}:", **ask) for i in range(4)]
    for stream in expected:
        stream.result()
    seen = {record["id"] for record in service.state()["requests"]}
    streams = [service.stream(f"Story {i}:", **ask) for i in range(4)]
    service.until(lambda: all(s.chunks > 5 for s in streams), "all are decoding")
    assert all(worker["running"] for worker in service.workers("decode"))
    assert service.command("scale", "decode", "1").returncode == 0
    for found, undisturbed in zip(streams, expected, strict=True):
        assert_same(found, undisturbed)
    service.until(lambda: len(service.workers("decode")) == 1, "the drained worker is gone")
    service.until_idle()
    moves = {r["id"]: _moves(r) for r in service.state()["requests"] if r["id"] not in seen}
    assert len(moves) == 4
    assert any(moves.values()), "no sequence moved from decode worker to decode worker"
    attempts = {r["id"]: r["attempt"] for r in service.state()["requests"] if r["id"] in moves}
    assert attempts == {id: 1 + count for id, count in moves.items()}, "a sequence was recomputed"


def _moves(record: dict[str, Any]) -> int:
    return sum("decode" in handoff["source"] for handoff in record["handoffs"])
