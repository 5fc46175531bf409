"""Several choices of one request on real workers: one ends alone, and all of them move when their worker drains."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

OUTPUT = 120  # tokens
ASK = {"model": "smollm2", "max_tokens": OUTPUT, "temperature": 0.8, "top_p": 0.9}


class Choices:
    """A streamed completion with several choices, read in a thread of its own."""

    def __init__(self, service: Any, prompt: str, n: int, **options: Any) -> None:
        self.id = ""
        self.texts = dict.fromkeys(range(n), "")
        self.finishes: dict[int, str] = {}
        self._error: BaseException | None = None
        self._service = service
        self._ask = {**ASK, "prompt": prompt, "n": n, "seed": 11, "extra_body": {"ignore_eos": True}, **options}
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for chunk in self._service.client.completions.create(stream=True, **self._ask):
                self.id = chunk.id
                for choice in chunk.choices:
                    self.texts[choice.index] += choice.text
                    if choice.finish_reason:
                        self.finishes[choice.index] = choice.finish_reason
        except BaseException as error:
            self._error = error

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> dict[int, str]:
        """All texts. Raises what the client raised."""
        self._service.until(lambda: self.over, "the stream ends")
        if self._error:
            raise self._error
        return self.texts


@pytest.fixture(scope="module")
def service(shared_service: Callable[..., Any]) -> Iterator[Any]:
    found = shared_service(chunk=64)
    found.scale("decode", 2)
    yield found
    found.scale("decode", 1)


def running(service: Any) -> int:
    return sum(worker.get("running", 0) for worker in service.workers("decode"))


def test_a_choice_that_a_stop_string_ends_is_computed_no_further(service) -> None:
    ask = {"prompt": "My three favourite animals are", "n": 3, "max_tokens": OUTPUT // 2}
    whole = Choices(service, **ask).result()
    stop = next(
        text
        for start in range(10, 50)
        if (text := whole[1][start : start + 12]) not in whole[0] + whole[2] and len(text) == 12
    )
    service.until_idle()
    cut = Choices(service, **ask, stop=[stop])
    service.until(lambda: cut.over or (cut.finishes and running(service) == 2), "two of three sequences go on")
    assert cut.finishes == {1: "stop"}
    assert cut.result() == {**whole, 1: whole[1][: whole[1].index(stop)]}
    service.until_idle()


def test_draining_moves_every_choice(service) -> None:
    """A decode worker drains that has three sequences of one request, or of two: routing may put both on one."""
    prompts = ["The first story begins", "Another story begins"]
    expected = [stream.result() for stream in [Choices(service, prompt, 3) for prompt in prompts]]
    service.until_idle()
    streams = [Choices(service, prompt, 3) for prompt in prompts]
    service.until(lambda: all(all(stream.texts.values()) for stream in streams), "all choices have text")
    service.until(lambda: running(service) == 6, lambda: f"six sequences run: {service.workers('decode')}")
    busiest = max(service.workers("decode"), key=lambda worker: worker["running"])
    service.drain(busiest["worker"], True)
    assert [stream.result() for stream in streams] == expected
    service.drain(busiest["worker"], False)
    service.until_idle()
    moves = {stream.id: _moves(service.record(stream.id)) for stream in streams}
    assert set(moves.values()) <= {0, 3}
    assert sum(moves.values()) == busiest["running"]
    assert {id: service.record(id)["attempt"] for id in moves} == {id: 1 + bool(count) for id, count in moves.items()}


def _moves(record: dict[str, Any]) -> int:
    """Hand-offs from one decode worker to another."""
    return sum("decode" in handoff["source"] for handoff in record["handoffs"])
