"""Logprobs of a prompt come to the client whole and before its answer, whoever tells them and in whatever order."""

from typing import Any

import pytest
from msgspec.structs import replace
from relay_script import Scripted

from legato_protocol.packed_logprobs import PackedLogprobs
from legato_protocol.stream import Decode, Generate, Prefill, PromptLogprobs, TokenItem, Tokens

PROMPT = tuple(range(100))


def logprobs(generation: Any) -> list[float]:
    return [token.logprob for token in generation.scores]


def tell(run: Scripted, worker: str, kind: type) -> int:
    """What that worker has to tell of one kind arrives; how much that is."""
    found = [frame for frame in run.workers[worker].outgoing if isinstance(frame, kind)]
    for frame in found:
        run.workers[worker].outgoing.remove(frame)
        run.relay.workers.received(worker, frame)
    return len(found)


def computed(lab: Any, *roles: str, **request: Any) -> tuple[Scripted, Any]:
    """All workers have done all, and nobody was told anything."""
    run = Scripted(lab, *roles)
    generation = run.start(**{"prompt_logprobs": 2, "max_tokens": 3} | request)
    for _ in range(12):
        for worker in run.workers.values():
            run._work(worker)
    return run, generation


@pytest.mark.parametrize("roles", [("u",), ("p", "d")])
def test_they_come_with_the_first_delta_of_each_choice(lab, roles):
    run = Scripted(lab, *roles)
    generation = run.start(prompt_logprobs=2, max_tokens=3, choices=2)
    run.until(lambda: generation.ended)
    assert logprobs(generation) == [-float(token) for token in PROMPT[1:]]
    assert next(iter(generation.scores)).top == ((1, -2.0), (2, -3.0))
    assert generation.usage.completion_tokens == 6


def test_tokens_that_overtake_them_wait(lab):
    run, generation = computed(lab, "p", "d")
    assert tell(run, "d1", Tokens) == 3
    assert (generation.completion_tokens, generation.ready()) == (0, [])
    assert tell(run, "p0", PromptLogprobs) == 2
    first, *others = generation.ready()
    assert first.scores is generation.scores
    assert all(delta.scores is None for delta in others)
    assert generation.ended
    assert generation.completion_tokens == 3


def test_when_who_has_them_dies_another_computes_the_prompt(lab):
    """Tokens that wait are not the next attempt's; what was told before is not told again."""
    run, generation = computed(lab, "p", "p", "d")
    prefill = run.workers[generation.route.prefill]
    told = [frame for frame in prefill.outgoing if isinstance(frame, PromptLogprobs)]
    run.relay.workers.received(prefill.name, told[0])
    assert tell(run, "d2", Tokens) == 3
    run.kill(prefill)
    assert generation.completion_tokens == 0
    run.until(lambda: generation.ended)
    assert logprobs(generation) == [-float(token) for token in PROMPT[1:]]
    assert generation.completion_tokens == 3
    assert generation.route.finish == "length"


def test_what_is_known_is_not_asked_for_again(lab):
    run = Scripted(lab, "u", "u")
    generation = run.start(prompt_logprobs=0, max_tokens=40)
    run.until(lambda: generation.completion_tokens == 7)
    run.kill(run.workers[generation.route.decode])
    run.until(lambda: generation.ended)
    first, second = (frame.sequence.params for _, frame in run.told(Generate))
    assert (first.prompt_logprobs, second.prompt_logprobs) == (0, None)
    assert generation.completion_tokens == 40


def test_a_prompt_of_one_token_has_none(lab):
    run = Scripted(lab, "u")
    generation = run.start(prompt_logprobs=3, prompt=(5,), max_tokens=2)
    run.until(lambda: generation.ended)
    assert logprobs(generation) == []
    ((_, frame),) = run.told(Generate)
    assert frame.sequence.params.prompt_logprobs is None


def test_no_cache_counts_for_who_asks(lab):
    run = Scripted(lab, "u")
    done = run.start(max_tokens=1)
    run.until(lambda: done.ended)
    plain = run.start(max_tokens=1)
    asking = run.start(max_tokens=1, prompt_logprobs=0)
    assert plain.uncached < asking.uncached == 100


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
    run = Scripted(lab, "u")
    generation = run.start(prompt_logprobs=0)
    sub = run.sub(generation)
    packed = PackedLogprobs(0, bytes(8), b"", bytes(8))
    fields = {name: getattr(packed, name) for name in PackedLogprobs.__struct_fields__} | change
    run.relay.workers.received("u0", PromptLogprobs(sub.id, 1, start, PackedLogprobs(**fields)))
    assert text in sub.last_failure.message
    assert sub.attempt == 2


def test_tokens_without_them_are_nonsense_where_one_worker_tells_both(lab):
    run = Scripted(lab, "u")
    generation = run.start(prompt_logprobs=0)
    sub = run.sub(generation)
    run.relay.workers.received("u0", Tokens((TokenItem(sub.id, 1, 0, 0, (3,)),)))
    assert "tokens before all logprobs of their prompt" in sub.last_failure.message
    assert generation.completion_tokens == 0


def test_what_nobody_asked_for_is_nonsense_and_what_is_late_is_dropped(lab):
    run = Scripted(lab, "u")
    generation = run.start()
    sub = run.sub(generation)
    packed = PackedLogprobs(0, bytes(8), b"", bytes(8))
    run.relay.workers.received("u0", PromptLogprobs(sub.id, 7, 1, packed))
    run.relay.workers.received("u0", PromptLogprobs("gone", 1, 1, packed))
    run.relay.workers.received("elsewhere", PromptLogprobs(sub.id, 1, 1, packed))
    assert sub.last_failure is None
    run.relay.workers.received("u0", PromptLogprobs(sub.id, 1, 1, packed))
    assert "that nobody asked for" in sub.last_failure.message


def test_a_worker_of_the_last_release_is_not_asked(lab):
    """It would pass over the field, and its tokens wait for ever."""
    run = Scripted(lab, "u", "u")
    run.relay.workers.greeted("u0", replace(run.workers["u0"].hello(), params=()))
    generation = run.start(prompt_logprobs=0, max_tokens=2)
    assert generation.route.decode == "u1"
    run.until(lambda: generation.ended)
    pair = Scripted(lab, "p", "d")
    pair.start(prompt_logprobs=0)
    assert [type(frame) for _, frame in pair.sent] == [Prefill, Decode]
