"""Random histories of two cores and a gateway that disturbs them: what was taken is given back, whatever happened."""

from random import Random

from budget import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from legato_engine.transfer.fakes.memory import Faults, Network
from legato_protocol.wire.packed_tokens import pack_tokens
from legato_protocol.wire.stream import Cancel, Decode, Generate, Handoff, Pause, Prefill, Sequence

LEASE = 30.0
QUIET = 4 * LEASE  # all deadlines and leases have passed by then


class Gateway:
    """Dispatches at random, and cancels, pauses, migrates and disconnects at random."""

    def __init__(self, world, random):
        self.world = world
        self.random = random
        turns = random.choice([0, 0, 3])  # that a step may last
        limits = {"chunk": 4, "blocks": 24, "max_waiting": 8, "step_turns": lambda: random.randint(0, turns)}
        self.workers = [world.worker(name, **limits) for name in "ab"]
        self.rooms = 0
        self.attempts = {}

    def ways(self):
        return self.random.sample(self.workers, 2)

    def sequence(self):
        prompt = [self.random.randrange(1, 9) for _ in range(self.random.randint(1, 40))]
        choices = (0, 1) if self.random.random() < 0.2 else (0,)
        deadline = self.random.choice([3.0, 10.0, 40.0, 60.0])
        return self.world.sequence(prompt, deadline=deadline, choices=choices, max_tokens=self.random.randint(1, 40))

    def fresh(self):
        id = f"r{len(self.attempts)}"
        self.attempts[id] = 1
        return id

    def some(self):
        id = self.random.choice(list(self.attempts) or ["nobody"])
        return id, self.attempts.get(id, 1)

    def generate(self):
        self.ways()[0].send(Generate(self.fresh(), 1, self.sequence()))

    def dispatch(self):
        """Both workers are told, or only one of them; as it happens, of different sequences."""
        self.rooms += 1
        prefill, decode = self.ways()
        id, wanted = self.fresh(), self.sequence()
        heard = self.random.random()
        if heard > 0.05:
            decode.send(Decode(id, 1, self.rooms, wanted, prefill.peer))
        if heard < 0.95:
            other = self.sequence() if heard > 0.9 else wanted
            prefill.send(Prefill(id, 1, self.rooms, other, decode.peer))

    def migrate(self):
        self.rooms += 1
        old, new = self.ways()
        id, attempt = self.some()
        for request in old.scheduler.requests(f"{self.world.gateway}/{id}"):
            self.attempts[id] = attempt + 1
            known = Sequence(pack_tokens(request.tokens), request.prompt_len, request.params, 40.0, request.choices)
            old.send(Handoff(id, attempt + 1, self.rooms, new.peer))
            if self.random.random() > 0.1:
                new.send(Decode(id, attempt + 1, self.rooms, known, old.peer))
            return

    def cancel(self):
        id, attempt = self.some()
        for worker in self.random.sample(self.workers, self.random.randint(1, 2)):
            worker.send(Cancel(id, attempt))

    def pause(self):
        id, attempt = self.some()
        for worker in self.workers:
            worker.send(Pause(id, attempt, self.random.random() < 0.5))

    def disconnect(self):
        """All its requests at one worker are over; it comes back at once."""
        worker = self.random.choice(self.workers)
        worker.send(left=(self.world.gateway,))
        worker.send(joined=(self.world.gateway,))

    def stop(self):
        """A worker hangs for a while; what it had under way lands late."""
        link = self.random.choice(self.workers).agent._link
        link.stop()
        self.world.network.after(self.random.choice([2, LEASE + 5]), link.resume)


ACTS = ["generate", *["dispatch"] * 3, *["migrate"] * 2, "cancel", "pause", "disconnect", *[None] * 3]
FAULTS = st.builds(Faults, st.floats(0, 3), break_connection=st.sampled_from([0.0, 0.02, 0.1]))


@settings(max_examples=times(20), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), FAULTS, st.integers(5, 80))
def test_after_a_quiet_time_nothing_is_held_and_nothing_is_pending(make_world, seed, faults, turns):
    random = Random(seed)
    world = make_world(Network(random, faults), LEASE)
    gateway = Gateway(world, random)
    for _ in range(turns):
        act = random.choice([*ACTS, "stop"] if random.random() < 0.1 else ACTS)
        if act:
            getattr(gateway, act)()
        world.run(1)
    world.run(int(QUIET))
    for worker in gateway.workers:
        counts = worker.scheduler.pool.counts()
        assert counts.free + counts.cached == worker.scheduler.pool.size, counts
        assert worker.scheduler.idle
        assert worker.agent.pending() == 0
        assert worker.status.idle
        assert (len(worker.core._handoffs.senders), len(worker.core._handoffs.receivers)) == (0, 0)
    world.close()
