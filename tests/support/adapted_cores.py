"""Cores in virtual time whose sequences have adapters: each adapter shifts all tokens by a number of its own."""

import threading
import time
from dataclasses import dataclass

import msgspec

from legato_engine.adapters.resident import OfferedAdapter
from legato_engine.errors import CorruptModel
from legato_engine.scheduler.batch import Sampled
from legato_protocol.wire.stream import Generate


@dataclass(frozen=True)
class Shift:
    """An adapter of the runner below."""

    by: int
    nbytes: int = 8


def shifting(token_runner):
    """A token runner that computes with adapters."""

    class Runner(token_runner):
        """KV of a token is the token, shifted by its adapter, and so are what it draws: blocks of another adapter, or a
        row without its own, show in the tokens."""

        def __init__(self):
            super().__init__()
            self.together = set()  # counts of adapters in a step

        def step(self, batch):
            self.together.add(len({row.adapter for row in batch.rows}))
            return super().step(batch)

        def _row(self, row):
            by = row.adapter.by if row.adapter is not None else 0
            shifted = type(row)([token + by for token in row.tokens], row.start, row.blocks)
            known = [token - by for token in self.write(shifted)]
            return tuple(Sampled(self._draw(known, draw).token + by) for draw in row.draws)

    return Runner


class Loads:
    """Adapters a, b, … that shift by 10,000, 20,000, …: how often each was loaded, and a gate before that."""

    def __init__(self, names="abcde"):
        self.gate = threading.Event()
        self.gate.set()
        self.faults = set()
        self.counts = dict.fromkeys(names, 0)
        self.offered = [OfferedAdapter(name, f"digest-{name}", self._loader(name)) for name in names]

    def _loader(self, name):
        def load():
            assert self.gate.wait(60)
            self.counts[name] += 1
            if name in self.faults:
                raise CorruptModel(f"/adapters/{name}: it is damaged")
            return Shift(self.by(name))

        return load

    @staticmethod
    def by(name):
        return 10_000 * (1 + "abcde".index(name)) if name else 0


class Adapted:
    """Cores with adapters, and what their gateway asks of them."""

    def __init__(self, world, runner):
        self.world = world
        self.make_runner = runner
        self.loads = Loads()

    def worker(self, name="u", **options):
        runner = self.make_runner()
        return self.world.worker(name, runner=runner, adapters=self.loads.offered, **options)

    def sequence(self, adapter="", prompt=None, **params):
        wanted = self.world.sequence(prompt or self.world.prompt, **{"max_tokens": 6, **params})
        return msgspec.structs.replace(wanted, adapter=f"digest-{adapter}" if adapter else "")

    def ask(self, worker, id, adapter="", prompt=None, **params):
        worker.send(Generate(id, 1, self.sequence(adapter, prompt, **params)))

    def finish(self, worker, *ids, **patience):
        self.until(lambda: all(worker.finished(id=id) for id in ids), **patience)

    def serve(self, worker, id, adapter="", **params):
        self.ask(worker, id, adapter, **params)
        self.finish(worker, id)
        assert worker.tokens(id) == self.expected(adapter, count=params.get("max_tokens", 6))

    def expected(self, adapter="", prompt=None, count=6):
        tokens, by = list(prompt or self.world.prompt), Loads.by(adapter)
        for _ in range(count):
            tokens.append(self.world.continuation(tokens, 1)[0] + by)
        return tokens[-count:]

    def until(self, condition, seconds=60):
        """Runs all workers. Opening and loading take real time, so their threads get a part of it."""
        give_up = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < give_up, "it hangs"
            time.sleep(0.0005)
            self.world.run(1)
            for worker in self.world.workers:
                worker.core._handler.adapters.check_integrity()
