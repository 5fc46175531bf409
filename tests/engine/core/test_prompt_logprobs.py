"""Logprobs of prompts on their way to the gateway: from the worker that computes the prompt, before its tokens."""

from array import array
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from legato_engine.core.outbox import Outbox, key_of
from legato_engine.core.phases import PhaseLog
from legato_engine.scheduler.request import Request
from legato_engine.scheduler.results import ScoredTokens
from legato_protocol import stream
from legato_protocol.messages import MAX_FRAME_BYTES
from legato_protocol.packed_logprobs import PackedLogprobs
from legato_protocol.stream import Cancel, PromptLogprobs, Tokens


def told(heard: Sequence[msgspec.Struct], attempt: int = 1) -> list[float]:
    """Those of all chunks, which must be in order and without gap."""
    found: list[float] = []
    for frame in heard:
        if isinstance(frame, PromptLogprobs) and frame.attempt == attempt:
            assert (frame.id, frame.start) == ("r", 1 + len(found))
            assert not frame.logprobs.fault()
            found += [token.logprob for token in frame.logprobs]
    return found


def expected(prompt: Sequence[int]) -> list[float]:
    return [-float(token) for token in prompt[1:]]


@pytest.mark.parametrize("chunk", [4, 8, 64])
def test_they_come_chunk_by_chunk_and_before_tokens(world: Any, chunk: int) -> None:
    worker = world.worker("u", chunk=chunk, link=False)
    world.generate(worker, prompt_logprobs=0, choices=(0, 1), turns=30)
    assert told(worker.heard) == expected(world.prompt)
    kinds = [type(frame) for frame in worker.heard if isinstance(frame, PromptLogprobs | Tokens)]
    chunks = -(-(len(world.prompt) - 1) // chunk)
    assert kinds[: chunks + 1] == [PromptLogprobs] * chunks + [Tokens]
    assert PromptLogprobs not in kinds[chunks:]
    assert worker.tokens() == world.continuation(world.prompt, 12)


def test_of_a_pair_the_prefill_worker_tells_them(world: Any) -> None:
    """Also when both hold the prompt already."""
    prefill, decode = world.worker("p"), world.worker("d")
    for attempt, room in ((1, 99), (2, 100)):
        world.hand_off(prefill, decode, world.sequence(prompt_logprobs=0), room=room, attempt=attempt, turns=60)
        assert told(prefill.heard, attempt) == expected(world.prompt)
        assert told(decode.heard, attempt) == []
        assert decode.tokens(attempt=attempt) == world.continuation(world.prompt, 12)
    assert decode.items(attempt=2)[0].cached_tokens == 0
    assert prefill.used == decode.used == 0


def test_one_that_is_cancelled_leaves_nothing_behind(world: Any) -> None:
    worker = world.worker("u", chunk=4, link=False)
    world.generate(worker, prompt_logprobs=0, turns=3)
    assert 0 < len(told(worker.heard)) < len(world.prompt) - 1
    worker.tell(Cancel("r", 1))
    world.run(5)
    assert worker.used == 0
    assert worker.items() == []


@pytest.mark.parametrize(("alternatives", "count"), [(20, 120_000), (0, 2_200_000)])
def test_those_of_a_large_chunk_come_in_frames_that_a_gateway_takes(world: Any, alternatives: int, count: int) -> None:
    numbers = array("i", range(count))
    packed = PackedLogprobs(
        alternatives, bytes(4 * count * (1 + alternatives)), (numbers * alternatives).tobytes(), numbers.tobytes()
    )
    outbox = Outbox(PhaseLog(lambda: 0.0))
    request = Request.of(key_of(7, "r"), 1, world.sequence(prompt_logprobs=alternatives), 0.0, None)
    outbox.scored(ScoredTokens(request, 5, packed))
    frames, _ = outbox.take()
    assert max(len(frame.data) for frame in frames) < MAX_FRAME_BYTES / 8
    told = [stream.decode_from_worker(frame.data) for frame in frames]
    assert [frame.start for frame in told] == [
        5 + sum(len(each.logprobs) for each in told[:i]) for i in range(len(told))
    ]
    assert {(frame.id, frame.attempt, frame.logprobs.alternatives) for frame in told} == {("r", 1, alternatives)}
    for field in ("logprobs", "token_ids", "ranks"):
        assert b"".join(getattr(frame.logprobs, field) for frame in told) == getattr(packed, field)
