"""Counts that penalties follow from: always those of a recount, and no token is read for them twice. In
test_random_operations those of each draw are checked, too, whatever has happened to its sequence."""

from counted_tokens import WatchedTokens, check_counts
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduled_worker import Worker, ask

from legato_engine.scheduler.batch import Draw
from legato_protocol.sampling.parameters import SamplingParams

TOKENS = st.integers(0, 9) | st.integers(0, 1 << 20)
STEPS = st.tuples(st.sampled_from(["append", "count", "fork", "adopt"]), st.integers(0), TOKENS)


@settings(deadline=None)
@given(st.lists(TOKENS, min_size=1), st.lists(TOKENS), st.integers(0, 1), st.lists(STEPS))
def test_counts_are_those_of_a_recount(prompt, output, seed, steps):
    """After each token or seldom; `check_counts` includes the prompt where `seed` is 0."""
    params = SamplingParams(max_tokens=9, seed=seed)
    draws = [Draw(0, 0, params, prompt + output, len(prompt))]
    for name, place, token in steps:
        draw = draws[place % len(draws)]
        tokens = list(draw.tokens)
        if name == "append":
            draw.tokens.append(token)
        elif name == "fork":
            draws.append(Draw(0, 0, params, tokens, len(prompt), None, draw.counts.copy()))
        elif name == "adopt":  # by another worker, which has nothing but the tokens
            draws.append(Draw(0, 0, params, tokens, len(prompt)))
        else:
            check_counts(draw)
    for draw in draws:
        check_counts(draw)


def test_each_draw_has_the_counts_of_its_sequence():
    """The draw of the prompt, those that decode, one of a step ahead, and that after a preemption."""
    worker, client = Worker(), ask(6, max_tokens=9)
    request = worker.add(client)
    worker.step()
    worker.begin()
    assert worker.begin_ahead()
    worker.end()
    worker.end()
    worker.scheduler._registry.preempt(request)
    worker.step()
    assert len(worker.batches) == 4
    assert all(draw.counts is request.counts for batch in worker.batches for row in batch.rows for draw in row.draws)


def test_choices_go_on_from_the_counts_of_their_prompt():
    worker, client = Worker(), ask(6, choices=(0, 1, 2), seed=8)
    worker.add(client)
    worker.step()
    requests = worker.scheduler.requests(client.id)
    assert len({request.counts for request in requests}) == 3
    for request in requests:
        tokens = WatchedTokens(request.tokens)
        request.counts.follow(tokens, request.prompt_len, with_prompt=True)
        assert tokens.read == {6}
