"""The timeline's samples: bounded, and of the workers of this model alone."""

from legato_gateway.ui import load_samples
from legato_gateway.ui.load_samples import LoadSampler
from legato_gateway.workers.fleet import Fleet
from legato_protocol.load import Load
from legato_protocol.stream import Hello


class NoRequests:
    active = 3

    def unplaced(self):
        return []


def _fleet():
    fleet = Fleet(lambda: 0.0, "model")
    for name, role, model in (("p0", "prefill", "model"), ("d0", "decode", "model"), ("x0", "decode", "other")):
        fleet.add(name, "127.0.0.1:1")
        fleet.greeted(name, Hello(name, "e", role, "kv", "w", "l", 16, 100, 4096, b"", "memory", model=model))
        fleet.loaded(name, Load(50, 1, 2, 60, 10, 30, 0))
    return fleet


def test_a_sample_adds_up_the_workers_of_a_role_and_leaves_out_those_of_another_model():
    samples = LoadSampler(_fleet(), NoRequests(), lambda: 5.0)
    samples.sample()
    (sample,) = samples.since(0.0)
    assert sample.active == 3
    assert set(sample.pools) == {"prefill", "decode"}
    assert sample.pools["decode"] == load_samples.PoolSample(1, 50, 2, 30, 100)


def test_workers_that_drain_or_are_gone_are_not_ready():
    fleet = _fleet()
    fleet.loaded("d0", Load(50, 1, 2, 60, 10, 30, 0, draining=True))
    fleet.gone("p0", "lost", "why")
    samples = LoadSampler(fleet, NoRequests(), lambda: 5.0)
    samples.sample()
    pools = samples.since(0.0)[0].pools
    assert pools["decode"].ready == 0
    assert pools["decode"].used_blocks == 30
    assert pools["prefill"] == load_samples.PoolSample(0, 0, 0, 0, 0)


def test_the_oldest_samples_are_dropped():
    now = [0.0]
    samples = LoadSampler(_fleet(), NoRequests(), lambda: now[0])
    for step in range(load_samples.KEPT + 5):
        now[0] = 1.0 + step
        samples.sample()
    kept = samples.since(0.0)
    assert len(kept) == load_samples.KEPT
    assert kept[0].time == 6.0
    assert [sample.time for sample in samples.since(now[0] - 2)] == [now[0] - 1, now[0]]
