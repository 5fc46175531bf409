"""A new revision of real processes is compared with the old one under streams. Workers are paced, to start quickly."""

from collections.abc import Callable
from typing import Any

import pytest
from paced_fleet import write_profile

CANARY = "{weight: 50, interval: 3s, minRequests: 10}"
SCALING = f"{{mode: External, prefill: {{max: 1}}, decode: {{max: 1}}}}\n  rollout: {{canary: {CANARY}}}"


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The second one takes five times as long for a step."""
    made = (write_profile(tmp_path_factory.mktemp("profile"), perStep=step) for step in (0.02, 0.1))
    fast, slow = map(str, made)
    return fast, slow


@pytest.fixture(scope="module")
def service(start: Callable[..., Any], profiles: tuple[str, str]) -> Any:
    return start(scaling=SCALING, engine=f", runner: Paced, profile: {profiles[0]}")


class Load:
    """Four streams at all times while something is waited for. None may fail."""

    def __init__(self, service: Any) -> None:
        self._service = service
        self._streams: list[Any] = []
        self._count = 0

    def until(self, condition: Callable[[], Any], what: str) -> None:
        def refilled() -> Any:
            for stream in [each for each in self._streams if each.done.is_set()]:
                assert stream.result()
                self._streams.remove(stream)
            while len(self._streams) < 4:
                self._streams.append(self._service.stream(f"Number {self._count} is", 16, seed=self._count))
                self._count += 1
            return condition()

        self._service.until(refilled, what, pause=0.05)

    def end(self) -> None:
        assert all(stream.result() for stream in self._streams)


def epochs(service: Any) -> set[str]:
    return {each["epoch"] for each in service.workers() if each["connection"] == "connected" and not each["draining"]}


def test_a_slow_revision_is_rolled_back_and_a_good_one_promoted_without_a_failed_stream(
    service: Any, profiles: tuple[str, str]
) -> None:
    fast, slow = profiles
    before, load = epochs(service), Load(service)
    service.edit((fast, slow))
    load.until(lambda: "(CanaryFailed" in service.log(), "the slow revision has failed")
    load.until(lambda: len(service.workers()) == 2 and epochs(service) == before, "the old workers serve alone")
    service.edit((slow, fast), ("chunkTokens: 64", "chunkTokens: 128"))
    load.until(lambda: service.log().count("(CanaryComparing") >= 2, "the good revision is compared")
    load.until(lambda: len(service.workers()) == 2 and not epochs(service) & before, "the new workers serve alone")
    load.end()
