"""Steps that take longer than a lease: the peer is deaf, not dead."""

import pytest


class Heart:
    """A step takes `seconds`, in which a worker's process beats on: what `core.heartbeat` does beside the loop."""

    def __init__(self, world, seconds):
        self.world, self.seconds = world, seconds
        self.beats = True

    def slow(self, worker):
        step = worker.runner.step

        def slow_step(batch):
            output = step(batch)
            for second in range(1, self.seconds + 1):
                self.world.network.run(self.world.network.now + 1)
                if self.beats:  # the other one waits here for its turn: its process lives, too
                    for each in self.world.workers:
                        each.agent.core_is_busy(float(second))
            return output

        worker.runner.step = slow_step


@pytest.fixture
def slow_pair(make_world):
    world = make_world(lease=10.0)
    heart = Heart(world, 15)
    workers = [world.worker(name, chunk=4) for name in ("p", "d")]
    for worker in workers:
        heart.slow(worker)
    yield world, heart, *workers
    world.close()


def fences(*workers):
    return sum(worker.agent.counts().fences for worker in workers)


def test_hand_offs_outlive_steps_that_are_longer_than_their_lease(slow_pair):
    """Only the first contact may cost an attempt: peers greet each other between their steps."""
    world, _, prefill, decode = slow_pair
    world.hand_off(prefill, decode, world.sequence())
    world.run(10)
    for attempt in (2, 3):
        world.hand_off(prefill, decode, world.sequence(), room=98 + attempt, attempt=attempt)
        world.run(40)
        assert decode.tokens(attempt=attempt) == world.continuation(world.prompt, 12)
    assert {failed.attempt for worker in (prefill, decode) for failed in worker.failures()} <= {1}
    assert fences(prefill, decode) == 0
    assert prefill.used == decode.used == 0


def test_a_peer_that_does_not_beat_during_its_step_is_taken_for_dead(slow_pair):
    """Without which the test above could not fail."""
    world, heart, prefill, decode = slow_pair
    world.hand_off(prefill, decode, world.sequence())
    world.run(10)
    heart.beats = False
    world.hand_off(prefill, decode, world.sequence(), room=100, attempt=2)
    world.run(40)
    assert decode.failures()[-1].attempt == 2
    assert fences(prefill, decode) > 0
