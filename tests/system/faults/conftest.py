"""Workers that stop at a stage of a request, and the two streams that must not notice."""

import secrets
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

GREEDY = {"temperature": 0, "logprobs": 2}
SEEDED = {"temperature": 0.8, "seed": 7, "top_p": 0.9}
OUTPUT = 160  # tokens
# Some forty chunks, so that it can be stopped between the first and the last.
STORY = " ".join(f"Chapter {i}: {i * 37 % 101} stones." for i in range(240))
TRIES = 20  # requests that may slip past the stage before their worker stops


@pytest.fixture(scope="module")
def undisturbed(shared: Any) -> list[Any]:
    """Their KV is copied from the prefill worker's memory; paced fleets hand over by TCP."""
    service = shared.get()
    streams = _ask(service)
    assert all(stream.result() for stream in streams)
    states = [service.worker_state(worker["worker"]) for worker in service.workers("decode")]
    assert any(state["totals"]["transfer"]["bytes_pulled"] for state in states)
    return streams


def _ask(service: Any) -> list[Any]:
    """A greedy and a seeded stream, of which nothing is in a cache: each time, the salt is another one."""
    body = {"extra_body": {"cache_salt": secrets.token_hex(4), "ignore_eos": True}, "max_tokens": OUTPUT}
    return [service.stream(f"{kind['temperature']}. {STORY}", **kind, **body) for kind in (GREEDY, SEEDED)]


class Round:
    """Two streams, and the worker that stops (SIGSTOP) while a request of theirs is at a certain stage.

    The stage is what the gateway's record of that request says, before the signal and again after it.
    """

    def __init__(self, service: Any, role: str, stage: str) -> None:
        service.until_idle()
        self._service, self._role, self._stage = service, role, stage
        self._processes = {worker["worker"]: service.processes(worker["worker"]) for worker in service.workers(role)}
        self._before = {worker["worker"]: self._transfers(worker["worker"]) for worker in service.workers()}
        self.epochs = {worker["worker"]: worker["epoch"] for worker in service.workers()}
        self._earlier = {record["id"] for record in service.state()["requests"]}
        self.streams = _ask(service)
        self.victim = self.target = self.receiver = ""

    def records(self) -> list[dict[str, Any]]:
        """The gateway's records of the two requests."""
        return [record for record in self._service.state()["requests"] if record["id"] not in self._earlier]

    def record(self) -> dict[str, Any]:
        return next(record for record in self.records() if record["id"] == self.target)

    def stop(self) -> bool:
        """Stops the worker at the stage. False when the request was past it: then all runs on."""
        found = self._service.until(self._seen, f"a request is {self._stage}", pause=0.01)
        if found is True:
            return False
        self.target, self.victim, self.receiver = found["id"], found[self._role], found["decode"]
        self.signal(signal.SIGSTOP)
        if any(record["id"] == self.target for record in self._there()):
            return True
        self.signal(signal.SIGCONT)
        return False

    def signal(self, number: signal.Signals) -> None:
        """To server and core of the victim, as far as they live."""
        for process in self._processes[self.victim]:
            if process.is_running():
                process.send_signal(number)

    @property
    def receiver_gave_up(self) -> bool:
        """True if the receiver has aborted a hand-off since the round began. Its blocks are quarantined from then on,
        until its connection to the sender is closed: that may be over before anybody sees it."""
        return self._transfers(self.receiver)["aborted"] > self._before[self.receiver]["aborted"]

    def finish(self, undisturbed: list[Any]) -> None:
        """Both streams end rightly, and the request was computed again."""
        for found, expected in zip(self.streams, undisturbed, strict=True):
            found.check(expected)
        record = self._service.until(lambda: (r := self.record())["stage"] == "ended" and r, "the request has ended")
        assert record["output_tokens"] == OUTPUT
        assert record["attempt"] > 1, record

    def _seen(self) -> Any:
        """The record of a request that is there; True once it is too late."""
        there = self._there()
        if there and self._stage == "pushing":
            sender = there[0]["prefill"]
            if self._transfers(sender)["bytes_sent"] == self._before[sender]["bytes_sent"]:
                there = []
        return there[0] if there else all(stream.done.is_set() for stream in self.streams)

    def _there(self) -> list[dict[str, Any]]:
        """Records of first attempts at the stage."""
        records = self.records()
        first = [record for record in records if record["attempt"] == 1]
        if self._stage == "decoding":
            return [each for each in first if each["stage"] == "decoding" and each["output_tokens"] < OUTPUT / 2]
        begun = [record for record in records if record["stage"] not in ("waiting", "queued")]
        # What is sent is its own: the other one has not begun.
        return [each for each in first if each["stage"] == "prefilling" and begun == [each]]

    def _transfers(self, worker: str) -> dict[str, int]:
        """The worker's counters of hand-offs, since its start."""
        counts: dict[str, int] = self._service.worker_state(worker)["totals"]["transfer"]
        return counts


@pytest.fixture
def stopped(service: Any) -> Iterator[Callable[[str, str], Round]]:
    """Gives rounds whose victim stopped at the stage; asks again when a request was faster than the signal."""
    rounds: list[Round] = []

    def stop(role: str, stage: str) -> Round:
        for _ in range(TRIES):
            round = Round(service, role, stage)
            rounds.append(round)
            if round.stop():
                return round
            for stream in round.streams:
                stream.result()
        pytest.fail(f"{TRIES} requests were never seen {stage} at the {role} worker when it had stopped")

    yield stop
    for round in rounds:
        if round.victim:
            round.signal(signal.SIGCONT)
