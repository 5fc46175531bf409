"""Cores whose runner launches a step before the one before it has ended."""

from random import Random

import pytest

from legato_engine.scheduler.batch import Batch

PROMPTS = [list(range(10, 30)), list(range(40, 46)), [1, 2, 3]]


def ahead_of(runner):
    """`runner`, as if its device worked by itself: what a step is launched for is known only when it is collected."""

    class Ahead(type(runner)):
        launched, drawn = 0, ()

        @property
        def ahead(self):
            return self

        def launch(self, batch):
            self.launched += 1
            rows = [row if row.tokens[0] >= 0 else self._known(row) for row in batch.rows]
            output = super().step(Batch(tuple(rows), batch.copies))
            self.drawn = [one.token for row in output for one in getattr(row, "sampled", row)]
            return output

        def collect(self, launched):
            self.launched -= 1
            return launched

        def step(self, batch):
            raise AssertionError("its steps are launched")

        def _known(self, row):
            return type(row)([self.drawn[-1 - row.tokens[0]]], row.start, row.blocks, row.draws)

    runner.__class__ = Ahead
    return runner


@pytest.fixture
def make_worker(world, make_token_runner):
    """Makes workers whose steps take up to three iterations of the loop."""
    random = Random(5)
    return lambda name="u": world.worker(
        name, runner=ahead_of(make_token_runner()), step_turns=lambda: random.randrange(4)
    )


def test_tokens_are_those_of_steps_one_by_one(world, make_worker):
    worker = make_worker()
    seen = []
    for index, prompt in enumerate(PROMPTS):
        world.generate(worker, prompt, id=str(index), max_tokens=20, turns=0)
    for _ in range(150):
        world.run(1)
        seen.append(worker.runner.launched)
    for index, prompt in enumerate(PROMPTS):
        assert worker.tokens(str(index)) == world.continuation(prompt, 20)
    assert max(seen) == 1  # one is in flight while the last one's output is processed
    assert seen[-1] == 0
    world.check_done()


def test_hand_offs_and_migrations_go_on_where_they_were(world, make_worker):
    """From a prefill worker to one that decodes a step ahead, and on to a third in the midst of it."""
    prefill, first, second = (make_worker(name) for name in "pde")
    world.hand_off(prefill, first, world.sequence(max_tokens=60))
    while len(first.tokens()) < 20:
        world.run(1)
    world.migrate(first, second, world.known(first.tokens(), max_tokens=60))
    world.run(300)
    output = first.tokens()
    items = second.items(attempt=2)
    assert items[0].index <= len(output)
    output[items[0].index :] = [token for item in items for token in item.token_ids]
    assert output == world.continuation(world.prompt, 60)
    world.check_done()


def test_what_was_decoded_ahead_is_found_by_the_next_turn_of_a_conversation(world, make_worker):
    worker = make_worker()
    world.generate(worker, id="a", max_tokens=30, turns=150)
    known = world.prompt + world.continuation(world.prompt, 30)
    world.generate(worker, [*known, 7, 7], id="b", max_tokens=4, turns=40)
    assert worker.tokens("b") == world.continuation([*known, 7, 7], 4)
    assert worker.items("b")[0].cached_tokens == (len(known) - 1) // 4 * 4
