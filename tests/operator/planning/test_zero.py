"""The plan for a service without workers, on the way there and back."""

import pytest
from planned import actions
from service_world import BROKEN, GOOD, OTHER, POOLS, World

from legato_operator.api import conditions
from legato_operator.planning.actions import Apply, Delete

EMPTY = {pool: {"min": 0, "max": 9} for pool in POOLS}


def _world(broken=(), **more):
    world = World((1, 1), (1, 0), scaling=EMPTY, broken=broken, **more)
    world.settle()
    assert _told(world, "Ready") == ("True", conditions.ALL_READY)
    return world


def _scaled(world, prefill, decode):
    world.scale("prefill", prefill)
    world.scale("decode", decode)


def _at_zero(**given):
    world = _world(**given)
    _scaled(world, 0, 0)
    world.settle()
    return world


def _told(world, kind):
    found = conditions.find(world.status, kind)
    return found["status"], found["reason"]


def _workers(world):
    return [pod for pod in world.pods.values() if pod.pool in POOLS]


def test_a_service_whose_workers_are_all_gone_is_ready_and_at_rest():
    world = _at_zero()
    assert not _workers(world)
    assert world.ready("gateway")
    assert _told(world, "Ready") == ("True", conditions.SCALED_TO_ZERO)
    for kind in ("PrefillReady", "DecodeReady"):
        assert _told(world, kind) == ("True", conditions.SCALED_TO_ZERO)
    assert _told(world, "GatewayReady") == ("True", conditions.ALL_READY)
    assert world.progressing() == ("False", conditions.UP_TO_DATE)
    made = world.look()
    assert not made.phases
    assert made.requeue_after > 1


def test_it_stays_ready_while_its_first_worker_starts():
    world = _at_zero()
    _scaled(world, 0, 1)
    world.look()
    world.look()
    (starting,) = _workers(world)
    assert starting.pool == "decode"
    assert _told(world, "DecodeReady") == ("False", conditions.STARTING)
    assert _told(world, "Ready") == ("True", conditions.SCALED_TO_ZERO)
    world.settle()
    assert _told(world, "Ready") == ("True", conditions.ALL_READY)


def test_a_first_worker_that_cannot_start_is_not_ready_until_one_of_the_last_good_revision_is():
    world = _at_zero(broken=("decode",))
    world.edit(BROKEN)
    world.settle()
    assert _told(world, "Ready") == ("True", conditions.SCALED_TO_ZERO)  # nobody tried
    _scaled(world, 0, 1)
    world.look()
    world.come_up(*_workers(world))
    world.look()
    assert _told(world, "Progressing") == ("False", conditions.ROLLOUT_FAILED)
    assert _told(world, "Ready")[0] == "False"
    world.settle()
    assert world.chunks("decode") == {GOOD}
    assert _told(world, "Ready") == ("True", conditions.ALL_READY)


def test_a_new_service_is_not_ready_before_its_first_worker():
    world = World((1, 1), (1, 0), scaling=EMPTY)
    world.look()
    world.look()
    for pod in world.starting():
        if pod.pool == "gateway":
            world.come_up(pod)
    world.look()
    assert _told(world, "Ready") == ("False", conditions.STARTING)


@pytest.mark.parametrize("prefill", [0, 1])
def test_a_prefill_pool_that_may_be_empty_does_not_decide_whether_the_service_is_ready(prefill):
    world = _world()
    _scaled(world, 0, 1)
    world.settle()
    _scaled(world, prefill, 1)
    world.look()
    world.look()
    prefilling = ("False", conditions.STARTING) if prefill else ("True", conditions.SCALED_TO_ZERO)
    assert _told(world, "PrefillReady") == prefilling
    assert _told(world, "Ready") == ("True", conditions.ALL_READY)


def test_a_rollout_at_zero_is_done_at_once_and_the_next_worker_is_of_its_revision():
    world = _at_zero()
    world.edit(OTHER)
    world.settle()
    assert world.progressing() == ("False", conditions.UP_TO_DATE)
    assert not _workers(world)
    _scaled(world, 1, 1)
    world.settle()
    for pool in POOLS:
        assert world.chunks(pool) == {OTHER}
    assert world.progressing() == ("False", conditions.UP_TO_DATE)


def test_a_request_that_comes_while_the_last_worker_drains_takes_it_back():
    world = _world()
    (decoder,) = world.ready("decode")
    world.work(decoder)
    _scaled(world, 1, 0)
    world.look()
    assert world.pods[decoder.name].on_its_way_out
    _scaled(world, 1, 1)
    world.look()
    assert not world.pods[decoder.name].on_its_way_out
    assert not actions(world.made, Delete)
    assert not any("spec" in each.item for each in actions(world.made, Apply))
