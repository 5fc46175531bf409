from observations import observed

from legato_cli.simulation.rivals.fixed import Fixed


def test_nothing_changes_it():
    scaler = Fixed(3, 7).scaler()
    assert scaler.sizes(observed(requests=1e6, queue_tokens=10**9)) == {"prefill": 3, "decode": 7}


def test_unified_workers_are_the_decode_pool():
    assert Fixed(3, 7).scaler().sizes(observed(sizes={"decode": 1})) == {"decode": 7}
