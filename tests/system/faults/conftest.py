"""Workers that stop at a stage of a request, and the two streams that must not notice."""

import secrets
import signal
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
from answers import assert_same

GREEDY = {"temperature": 0, "logprobs": 2}
SEEDED = {"temperature": 0.8, "seed": 7, "top_p": 0.9}
OUTPUT = 300  # tokens
CHAPTERS = 240  # of a prompt: some forty chunks, so that it can be stopped between the first and the last
TRIES = 20  # requests that may slip past the stage before their worker stops


@pytest.fixture(scope="module")
def prompts() -> dict[str, str]:
    story = " ".join(f"Chapter {i}: {i * 37 % 101} stones." for i in range(CHAPTERS))
    return {"greedy": "Greedy. " + story, "seeded": "Seeded. " + story}


@pytest.fixture(scope="module")
def undisturbed(shared: Any, prompts: dict[str, str]) -> list[Any]:
    streams = _ask(shared.get(), prompts)
    for stream in streams:
        assert stream.result()
    return streams


def _ask(service: Any, prompts: dict[str, str]) -> list[Any]:
    """A greedy and a seeded stream, of which nothing is in a cache: each time, the salt is another one."""
    body = {"extra_body": {"cache_salt": secrets.token_hex(4), "ignore_eos": True}, "max_tokens": OUTPUT}
    greedy = service.stream(prompts["greedy"], **GREEDY, **body)
    return [greedy, service.stream(prompts["seeded"], **SEEDED, **body)]


class Round:
    """Two streams, and the worker that stops (SIGSTOP) while a request of theirs is at a certain stage.

    The stage is what the gateway's record of that request says, before the signal and again after it.
    """

    def __init__(self, service: Any, prompts: dict[str, str], role: str, stage: str) -> None:
        service.until_idle()
        self._service = service
        self._role, self._stage = role, stage
        self._sent = self._bytes_sent()
        workers = [worker["worker"] for worker in service.workers(role)]
        self._processes: dict[str, list[psutil.Process]] = {name: service.processes(name) for name in workers}
        self.epochs = {worker["worker"]: worker["epoch"] for worker in service.workers()}
        self._earlier = {record["id"] for record in service.state()["requests"]}
        self._aborted = {worker["worker"]: self._aborts(worker["worker"]) for worker in service.workers("decode")}
        self.streams = _ask(service, prompts)
        self.victim = self.target = self.receiver = ""

    def records(self) -> list[dict[str, Any]]:
        """What the gateway tells of the two requests."""
        return [record for record in self._service.state()["requests"] if record["id"] not in self._earlier]

    def record(self) -> dict[str, Any]:
        return next(record for record in self.records() if record["id"] == self.target)

    def stop(self) -> bool:
        """Stops the worker at the stage. False when the request was past it: then all runs on."""
        found = self._service.until(self._seen, f"a request is {self._stage}", pause=0.002)
        if found is True:
            return False
        self.target, self.victim, self.receiver = found["id"], found[self._role], found["decode"]
        self.signal(signal.SIGSTOP)
        if self._is_there(self.record()):
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
        """Whether the receiver has aborted a hand-off since the round began. Its blocks are quarantined from then on,
        until its connection to the sender is closed: that may be over before anybody sees it."""
        return self._aborts(self.receiver) > self._aborted[self.receiver]

    def finish(self, undisturbed: list[Any]) -> None:
        """Both streams end rightly; the request was computed again if, and only if, its worker had to do with it."""
        for found, expected in zip(self.streams, undisturbed, strict=True):
            assert_same(found, expected)
        record = self._service.until(lambda: (r := self.record())["stage"] == "ended" and r, "the request has ended")
        assert record["output_tokens"] == OUTPUT
        needed = self._role == "decode" or self._stage != "decoding"
        assert (record["attempt"] > 1) == needed, record

    def _seen(self) -> Any:
        """The record of a request that is there; True once it is too late."""
        there = [record for record in self.records() if self._is_there(record)]
        if self._stage == "pushing" and self._bytes_sent() == self._sent:
            there = []
        return there[0] if there else all(stream.done.is_set() for stream in self.streams)

    def _is_there(self, record: dict[str, Any]) -> bool:
        if record["attempt"] != 1:
            return False
        others = {other["stage"] for other in self.records() if other["id"] != record["id"]}
        match self._stage:
            case "queued":  # behind the other one
                return record["stage"] == "queued" and others == {"prefilling"}
            case "pushing":  # what is sent is its own: the other one has not begun
                return record["stage"] == "prefilling" and others <= {"waiting", "queued"}
            case _:
                return record["stage"] == "decoding" and record["output_tokens"] < OUTPUT / 2

    def _bytes_sent(self) -> int:
        """By hand-offs, since the prefill worker's start."""
        (worker,) = self._service.workers("prefill")
        return self._transfer_count(worker["worker"], "bytes_sent")

    def _aborts(self, worker: str) -> int:
        return self._transfer_count(worker, "aborted")

    def _transfer_count(self, worker: str, what: str) -> int:
        return int(self._service.told_by(worker)["totals"]["transfer"][what])


@pytest.fixture
def stopped(service: Any, prompts: dict[str, str]) -> Iterator[Callable[[str, str], Round]]:
    """Gives rounds whose victim stopped at the stage; asks again when a request was faster than the signal."""
    rounds: list[Round] = []

    def stop(role: str, stage: str) -> Round:
        for _ in range(TRIES):
            round = Round(service, prompts, role, stage)
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
