"""The longest sequence that clients can request: the setting, or the limit that workers report."""

from types import SimpleNamespace

import pytest
from admission import worker

from legato_gateway.routing.filters import LONGEST
from legato_gateway.routing.fleet_snapshot import FleetSnapshot
from legato_gateway.workers.served import ServedLength

WORKERS = {name: worker(name, max_length=length) for name, length in (("p0", 7000), ("d0", 5000), ("d1", 6000))}
LEAVING = worker("d2", max_length=100, draining=True)


@pytest.mark.parametrize(
    ("given", "declared", "workers", "longest"),
    [
        (4096, 8192, ("d0",), 4096),
        (None, 8192, (), 8192),
        (None, None, (), LONGEST),
        (None, 8192, ("p0", "d0", "d1"), 5000),
    ],
    ids=["the setting", "what the model declares", "unknown", "the shortest of all workers"],
)
def test_the_longest_sequence(given, declared, workers, longest):
    snapshot = FleetSnapshot((*[WORKERS[name] for name in workers], LEAVING))
    assert ServedLength(SimpleNamespace(snapshot=lambda: snapshot), given, declared).tokens() == longest


def test_what_the_last_workers_reported_is_kept_while_there_are_none():
    fleet = SimpleNamespace(snapshot=lambda: FleetSnapshot((WORKERS["d0"],)))
    length = ServedLength(fleet, None, 8192)
    assert length.tokens() == 5000
    fleet.snapshot = lambda: FleetSnapshot(())
    assert length.tokens() == 5000
