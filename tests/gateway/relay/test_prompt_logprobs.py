"""Logprobs of a prompt reach the client whole and before its answer, whichever worker sends them and in any order."""

import pytest
from msgspec.structs import replace
from relay_script import Scripted, started

from legato_protocol.wire.packed_logprobs import PackedLogprobs
from legato_protocol.wire.stream import Decode, Generate, Prefill, PromptLogprobs, Tokens

WHOLE = [-float(token) for token in range(1, 100)]


def _logprobs(generation):
    return [token.logprob for token in generation.scores]


def _deliver(run, worker, kind):
    """Delivers that worker's frames of one kind; returns their number."""
    frames = [frame for frame in run.workers[worker].outgoing if isinstance(frame, kind)]
    for frame in frames:
        run.workers[worker].outgoing.remove(frame)
        run.relay.workers.received(worker, frame)
    return len(frames)


def _computed(lab, *roles):
    """All workers have done all, and nothing was delivered."""
    run, generation, _ = started(lab, *roles, request={"prompt_logprobs": 2, "max_tokens": 3})
    for _ in range(12):
        for worker in run.workers.values():
            run._work(worker)
    return run, generation


@pytest.mark.parametrize("roles", [("u",), ("p", "d")])
def test_they_come_with_the_first_delta_of_each_choice(lab, roles):
    run, generation, _ = started(lab, *roles, request={"prompt_logprobs": 2, "max_tokens": 3, "choices": 2})
    assert run.end(generation) is None
    assert _logprobs(generation) == WHOLE
    assert next(iter(generation.scores)).top == ((1, -2.0), (2, -3.0))
    assert generation.usage.completion_tokens == 6


def test_tokens_that_overtake_them_wait(lab):
    run, generation = _computed(lab, "p", "d")
    assert _deliver(run, "d1", Tokens) == 3
    assert (generation.completion_tokens, generation.ready()) == (0, [])
    assert _deliver(run, "p0", PromptLogprobs) == 2
    first, *others = generation.ready()
    assert first.scores is generation.scores
    assert all(delta.scores is None for delta in others)
    assert (generation.ended, generation.completion_tokens) == (True, 3)


def test_when_the_worker_that_has_them_dies_another_computes_the_prompt(lab):
    """Tokens that wait are not the next attempt's; what was sent before is not sent again."""
    run, generation = _computed(lab, "p", "p", "d")
    prefill = run.workers[generation.route.prefill]
    run.relay.workers.received(prefill.name, next(f for f in prefill.outgoing if isinstance(f, PromptLogprobs)))
    assert _deliver(run, "d2", Tokens) == 3
    run.kill(prefill)
    assert generation.completion_tokens == 0
    assert run.end(generation) is None
    assert _logprobs(generation) == WHOLE
    assert (generation.completion_tokens, generation.route.finish) == (3, "length")


def test_what_is_known_is_not_asked_for_again(lab):
    run, generation, _ = started(lab, "u", "u", request={"prompt_logprobs": 0, "max_tokens": 40})
    run.until(lambda: generation.completion_tokens == 7)
    run.kill(run.workers[generation.route.decode])
    assert run.end(generation) is None
    assert [frame.sequence.params.prompt_logprobs for _, frame in run.frames(Generate)] == [0, None]
    assert generation.completion_tokens == 40


def test_a_prompt_of_one_token_has_none(lab):
    run, generation, _ = started(lab, "u", request={"prompt_logprobs": 3, "prompt": (5,), "max_tokens": 2})
    assert run.end(generation) is None
    assert _logprobs(generation) == []
    assert [frame.sequence.params.prompt_logprobs for _, frame in run.frames(Generate)] == [None]


def test_no_cache_counts_for_a_request_that_asks(lab):
    run, done, _ = started(lab, "u", request={"max_tokens": 1})
    assert run.end(done) is None
    plain, asking = (run.start(max_tokens=1, prompt_logprobs=asked) for asked in (None, 0))
    assert plain.uncached < asking.uncached == 100


NONE = PackedLogprobs(0, bytes(8), b"", bytes(8))


@pytest.mark.parametrize(
    ("start", "change", "text"),
    [
        (3, {}, "no logprobs of tokens 1 to 2 of its prompt"),
        (99, {}, "no logprobs of tokens 1 to 98"),
        (1, {"alternatives": 1, "logprobs": bytes(16), "token_ids": bytes(8)}, "logprobs with 1 alternatives, not 0"),
        (1, {"ranks": bytes(4 * 101), "logprobs": bytes(4 * 101)}, "logprobs of 102 tokens of a prompt of 100"),
        (1, {"logprobs": bytes(4)}, "other sizes"),
    ],
)
def test_nonsense_ends_the_attempt(lab, start, change, text):
    run, _, sub = started(lab, "u", request={"prompt_logprobs": 0})
    run.relay.workers.received("u0", PromptLogprobs(sub.id, 1, start, replace(NONE, **change)))
    assert text in sub.last_failure.message
    assert sub.attempt == 2


def test_tokens_without_them_are_nonsense_where_one_worker_sends_both(lab):
    run, generation, sub = started(lab, "u", request={"prompt_logprobs": 0})
    run.token(sub)
    assert "tokens before all logprobs of their prompt" in sub.last_failure.message
    assert generation.completion_tokens == 0


def test_unrequested_ones_are_nonsense_and_late_ones_are_dropped(lab):
    run, _, sub = started(lab, "u")
    for worker, id, attempt in (("u0", sub.id, 7), ("u0", "gone", 1), ("elsewhere", sub.id, 1)):
        run.relay.workers.received(worker, PromptLogprobs(id, attempt, 1, NONE))
    assert sub.last_failure is None
    run.relay.workers.received("u0", PromptLogprobs(sub.id, 1, 1, NONE))
    assert "that were not requested" in sub.last_failure.message


def test_a_worker_of_the_last_release_is_not_asked(lab):
    """It would pass over the field, and its tokens wait for ever."""
    run = Scripted(lab, "u", "u")
    run.greet("u0", params=())
    generation = run.start(prompt_logprobs=0, max_tokens=2)
    assert generation.route.decode == "u1"
    assert run.end(generation) is None
    pair, _, _ = started(lab, "p", "d", request={"prompt_logprobs": 0})
    assert [type(frame) for _, frame in pair.sent] == [Prefill, Decode]
