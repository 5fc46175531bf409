"""Prefixes that workers will soon have cached: prompts sent to them, until their KV events arrive. Pure.

Requests of a burst share a prefix that no worker has stored yet. Predictions send them to the worker that computes it,
as in the routers of NVIDIA Dynamo and llm-d. A prediction only counts in the cost of a prefill. It is removed if the
attempt fails, expires by itself, and holds for one epoch of the worker.

A prediction is kept at `PLACES` of its block hashes only: at every block first, and farther apart the longer the
prefix. So a long prompt costs little more than a short one, and the predicted prefix is at most a ninth too short.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

PREDICTED_SECONDS = 30.0  # a prompt not computed by then is in a long queue: others need not wait for it
SETTLING_SECONDS = 2.0  # from the first token until the worker's KV events have surely arrived
LONGEST = 1 << 22  # blocks


def _places() -> Iterator[int]:
    place = 1
    while place < LONGEST:
        yield place
        place += max(1, place // 8)


PLACES = tuple(_places())

Holder = tuple[str, str]  # worker, epoch
NOBODY: dict[Holder, int] = {}


@dataclass(slots=True)
class _Prediction:
    holder: Holder
    hashes: list[bytes]  # at its places
    expires: float


class PredictedPrefixes:
    """All predictions of one gateway, by id of the sub-request. `now` is on any one clock, in seconds."""

    def __init__(self) -> None:
        self._predictions: dict[str, _Prediction] = {}
        self._holders: dict[bytes, dict[Holder, int]] = {}  # number of predictions by block and holder
        self._expiring: list[tuple[float, str]] = []  # a heap; the prediction has the current time

    def add(self, id: str, worker: str, epoch: str, hashes: list[bytes], expires: float) -> None:
        """Predicts that the worker will have the blocks of `hashes`. Replaces an earlier prediction of `id`."""
        self.remove(id)
        if not hashes:
            return
        holder, kept = (worker, epoch), _kept(hashes)
        for block in kept:
            counts = self._holders.setdefault(block, {})
            counts[holder] = counts.get(holder, 0) + 1
        self._predictions[id] = _Prediction(holder, kept, expires)
        heapq.heappush(self._expiring, (expires, id))

    def shorten(self, id: str, expires: float) -> None:
        """Lets the prediction expire earlier: `id` was computed and the worker's events are on their way."""
        prediction = self._predictions.get(id)
        if prediction is not None and expires < prediction.expires:
            prediction.expires = expires
            heapq.heappush(self._expiring, (expires, id))

    def remove(self, id: str) -> None:
        """Removes the prediction of `id`, if any."""
        prediction = self._predictions.pop(id, None)
        if prediction is None:
            return
        for block in prediction.hashes:
            counts = self._holders[block]
            counts[prediction.holder] -= 1
            if not counts[prediction.holder]:
                del counts[prediction.holder]
            if not counts:
                del self._holders[block]

    def match(self, hashes: list[bytes], now: float) -> dict[Holder, int]:
        """Returns the number of leading blocks that each worker, in that epoch, will soon have cached."""
        self._expire(now)
        prefixes: dict[Holder, int] = {}
        if not self._predictions or not hashes:
            return prefixes
        get, last, blocks = self._holders.get, NOBODY, 0
        for place in PLACES[: bisect_right(PLACES, len(hashes))]:
            holders = get(hashes[place - 1], NOBODY)
            if len(holders) != len(last):  # fewer: a holder of a block here has all before it
                prefixes |= dict.fromkeys(last, blocks)
                if not holders:
                    return prefixes
            last, blocks = holders, place
        return prefixes | dict.fromkeys(last, blocks) | dict.fromkeys(get(hashes[-1], NOBODY), len(hashes))

    def __len__(self) -> int:
        return len(self._predictions)

    def check_integrity(self) -> None:
        """Raises AssertionError unless the counts by block match the predictions."""
        counts: dict[bytes, dict[Holder, int]] = {}
        for prediction in self._predictions.values():
            for block in prediction.hashes:
                at = counts.setdefault(block, {})
                at[prediction.holder] = at.get(prediction.holder, 0) + 1
        assert counts == self._holders, "blocks and predictions differ"
        assert self._predictions.keys() <= {id for _, id in self._expiring}, "a prediction never expires"

    def _expire(self, now: float) -> None:
        while self._expiring and self._expiring[0][0] <= now:
            _, id = heapq.heappop(self._expiring)
            prediction = self._predictions.get(id)
            if prediction is not None and prediction.expires <= now:
                self.remove(id)


def _kept(hashes: list[bytes]) -> list[bytes]:
    """Returns the hashes at the places, and the last one."""
    places = PLACES[: bisect_right(PLACES, len(hashes))]
    kept = [hashes[place - 1] for place in places]
    return kept if places[-1] == len(hashes) else [*kept, hashes[-1]]
