"""What holds for every rival."""

import pickle

import pytest
from observations import observed

from legato_cli.simulation.rivals import RIVALS
from legato_cli.simulation.rivals.ground import Ground
from legato_cli.simulation.workloads import Traffic, named
from legato_engine.runner.profile import Profile, StepTimes

STEP = StepTimes(per_step=0.005, per_row=1e-5, per_context=1e-8, per_token=1e-4, per_pair=1e-9)
GROUND = Ground(
    named("mix-shift", 1, Traffic(seconds=600), None),
    Profile("test", STEP, 400_000, 60.0),
    2.0,
    0.05,
    {"prefill": 8, "decode": 8},
    64,
)


@pytest.mark.parametrize("rival", RIVALS.values(), ids=RIVALS.keys())
def test_scaler_is_fresh_has_the_rivals_name_and_knows_its_pools(rival):
    pools = ("decode",) if rival.unified else ("decode", "prefill")
    for grid in rival.grids(GROUND):
        settings = grid.make(grid.prefill[0], grid.decode[0])
        scaler = settings.scaler()
        assert scaler.name == rival.name
        assert scaler is not settings.scaler()
        assert set(scaler.sizes(observed(sizes=dict.fromkeys(pools, 1)))) == set(pools)


@pytest.mark.parametrize("rival", RIVALS.values(), ids=RIVALS.keys())
def test_settings_go_to_other_processes(rival):
    for grid in rival.grids(GROUND):
        settings = grid.make(grid.prefill[-1], grid.decode[1])
        assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize("rival", RIVALS.values(), ids=RIVALS.keys())
def test_grids_go_from_generous_to_frugal(rival):
    """More of a target, and fewer workers, the further one goes."""
    for grid in rival.grids(GROUND):
        for values in (grid.prefill, grid.decode):
            assert list(values) == sorted(values, reverse=rival.name.startswith("fixed"))
        assert len(grid.decode) > 1
