"""Logprobs of prompts on their way to the gateway: from the worker that computes the prompt, before its tokens."""

from array import array
from itertools import accumulate

import pytest

from legato_engine.core.reporting.outbox import Outbox, key_of
from legato_engine.core.reporting.phases import PhaseLog
from legato_engine.scheduler.requests.request import Request
from legato_engine.scheduler.results import ScoredTokens
from legato_protocol.wire import stream
from legato_protocol.wire.messages import MAX_FRAME_BYTES
from legato_protocol.wire.packed_logprobs import PackedLogprobs
from legato_protocol.wire.stream import PromptLogprobs, Tokens


def logprobs(heard, attempt=1):
    """Logprobs of all chunks, which must be in order and without gap."""
    found = []
    for frame in heard:
        if isinstance(frame, PromptLogprobs) and frame.attempt == attempt:
            assert (frame.id, frame.start) == ("r", 1 + len(found))
            assert not frame.logprobs.fault()
            found += [token.logprob for token in frame.logprobs]
    return found


@pytest.fixture
def expected(world):
    return [-float(token) for token in world.prompt[1:]]


@pytest.mark.parametrize("chunk", [4, 8, 64])
def test_they_come_chunk_by_chunk_and_before_tokens(world, expected, chunk):
    worker = world.worker("u", chunk=chunk, link=False)
    world.generate(worker, prompt_logprobs=0, choices=(0, 1), turns=30)
    assert logprobs(worker.heard) == expected
    kinds = [type(frame) for frame in worker.heard if isinstance(frame, PromptLogprobs | Tokens)]
    chunks = -(-len(expected) // chunk)
    assert kinds[: chunks + 1] == [PromptLogprobs] * chunks + [Tokens]
    assert PromptLogprobs not in kinds[chunks:]
    assert worker.tokens() == world.continuation(world.prompt, 12)


@pytest.mark.parametrize(("alternatives", "count"), [(20, 120_000), (0, 2_200_000)])
def test_those_of_a_large_chunk_come_in_frames_that_a_gateway_takes(world, alternatives, count):
    numbers = array("i", range(count))
    packed = PackedLogprobs(
        alternatives, bytes(4 * count * (1 + alternatives)), (numbers * alternatives).tobytes(), numbers.tobytes()
    )
    outbox = Outbox(PhaseLog(lambda: 0.0))
    request = Request.from_sequence(key_of(7, "r"), 1, world.sequence(prompt_logprobs=alternatives), 0.0, None)
    outbox.add_prompt_logprobs(ScoredTokens(request, 5, packed))
    frames, _ = outbox.take()
    assert max(len(frame.data) for frame in frames) < MAX_FRAME_BYTES / 8
    heard = [stream.decode_from_worker(frame.data) for frame in frames]
    assert [frame.start for frame in heard] == list(accumulate((len(one.logprobs) for one in heard[:-1]), initial=5))
    assert {(frame.id, frame.attempt, frame.logprobs.alternatives) for frame in heard} == {("r", 1, alternatives)}
    for field in ("logprobs", "token_ids", "ranks"):
        assert b"".join(getattr(frame.logprobs, field) for frame in heard) == getattr(packed, field)
