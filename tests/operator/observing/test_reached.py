"""Ready workers are reached once a gateway reports that it has greeted them."""

import pytest
from planned import report

from legato_operator.observing import reached
from legato_operator.observing.observed import Pod
from legato_operator.observing.reached import GRACE
from legato_protocol.wire.demand import WorkerLink

REFUSED = WorkerLink("d0", False, "it refuses this gateway's token")


def pod(name="d0", pool="decode", ready=True, **fields):
    return Pod(name, f"uid-{name}", pool, "r", "0", ready, False, **fields)


def gateway(name, *links, uptime=100.0, tells=True):
    return pod(name, "gateway", report=report(name, uptime=uptime, links=links if tells else None))


def unreached(*gateways, worker=None):
    return reached.mark_unreached([worker or pod(), *gateways])[0].unreached


def test_one_connection_is_enough():
    assert unreached(gateway("g0", REFUSED), gateway("g1", WorkerLink("d0", True))) == ""


def test_each_gateway_s_reason_is_told():
    told = unreached(gateway("g0", REFUSED), gateway("g1", WorkerLink("d0", False)), gateway("g2"))
    assert told == "g0: it refuses this gateway's token; g1: not connected yet; g2: not listed there"


@pytest.mark.parametrize(("lost_for", "says"), [(GRACE - 1, False), (GRACE, True)])
def test_a_connection_that_broke_just_now_comes_again(lost_for, says):
    assert bool(unreached(gateway("g0", WorkerLink("d0", False, "broke", lost_for)))) == says


def test_where_nobody_tells_nothing_is_wrong():
    assert unreached() == ""
    assert unreached(pod("g0", "gateway")) == "", "it did not answer"
    assert unreached(gateway("g0", tells=False)) == "", "an older one"


def test_a_gateway_that_has_just_begun_knows_nobody_yet():
    assert unreached(gateway("g0", REFUSED, uptime=GRACE - 1)) == ""
    assert unreached(gateway("g0", REFUSED, WorkerLink("d1", True), uptime=GRACE - 1)) != "", "it knows others"


def test_a_worker_that_is_not_ready_and_a_gateway_are_not_judged():
    assert unreached(gateway("g0", REFUSED), worker=pod(ready=False)) == ""
    assert unreached(gateway("g0", REFUSED), worker=pod("g1", "gateway")) == ""
