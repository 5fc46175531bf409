from observations import observed

from legato_cli.simulation.rivals.fixed import UNIFIED, Fixed, FixedUnified
from legato_cli.simulation.rivals.ground import Ground


def test_nothing_changes_it():
    scaler = Fixed(3, 7).scaler()
    assert scaler.sizes(observed(requests=1e6, queue_tokens=10**9)) == {"prefill": 3, "decode": 7}


def test_unified_workers_are_the_decode_pool():
    assert FixedUnified(0, 7).scaler().sizes(observed(sizes={"decode": 1})) == {"decode": 7}


def test_unified_grid_has_one_axis():
    (grid,) = UNIFIED.grids(Ground(None, None, 1.0, 0.1, {"decode": 3}, 64))
    assert (grid.prefill, grid.decode) == ((0,), (3, 2, 1))
