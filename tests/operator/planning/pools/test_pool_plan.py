"""One pool's plan: who is started, who goes first, and what is left to do."""

import functools

import pytest

from legato_operator.api import conditions, parsing
from legato_operator.cluster import Ref
from legato_operator.manifests import common, placement, pool
from legato_operator.manifests.pods import worker
from legato_operator.observing.observed import Observed, PeerTLS, Pod, WorkerState
from legato_operator.planning.actions import Apply, Delete, DrainWorker
from legato_operator.planning.failure import Failure
from legato_operator.planning.pools import pool_plan
from legato_operator.planning.pools.limits import PoolTarget
from legato_operator.planning.rollout.revisions import Revisions
from legato_operator.planning.rollout.rolling_update import Pace, RollingUpdate

PLACEMENT = placement.local(("legato",))
NEW, GOOD, OTHER = 512, 256, 128  # revisions, by the chunk tokens of their workers
TLS = PeerTLS("authority", "worker")


@pytest.fixture
def planned(build):
    """The plan for the decode workers of a service whose manifest says `NEW`."""
    return functools.partial(_planned, build)


def _planned(build, *pods, target=2, pace=Pace.FREE, bounds=(1, 0), good=GOOD):
    observed = _observed(build, bounds, pods)
    return pool_plan.plan_pool(observed, "decode", _revisions(build, good), target, RollingUpdate(*bounds), pace)


def _observed(build, bounds, pods):
    item = build(rollout={"maxSurge": bounds[0], "maxUnavailable": bounds[1]})
    service = parsing.read_service(item)
    objects = tuple(_owner(service, role) for role in ("prefill", "decode"))
    named = tuple(make(build, f"demo-decode-{number}", str(number)) for number, make in enumerate(pods))
    return Observed(service, "uid", 1, {}, False, objects, named, True, 1000.0, "2026-01-01T00:00:00Z")


def _owner(service, role):
    made = pool.worker_pool(service, role)
    return {**made, "metadata": {**made["metadata"], "uid": f"uid-{role}"}}


def _template(build, chunk, role="decode"):
    return worker.template(parsing.read_service(build(engine={"chunkTokens": chunk})), role, PLACEMENT)


def _revisions(build, good, role="decode", failure=None):
    return Revisions(_template(build, NEW, role), _template(build, good, role) if good else None, failure)


def _pod(chunk, ready=True, busy=0, role="decode", **more):
    """A worker; the later it is listed, the newer it is."""

    def make(build, name, created):
        state = WorkerState(busy, False, "ucx:tcp") if ready else None
        given = {"leaving": False, "address": "127.0.0.1:1", "tls": TLS, "state": state} | more
        return Pod(
            name, f"uid-{name}", role, common.revision_of(_template(build, chunk, role)), created, ready, **given
        )

    return make


def _chunks(made):
    commands = [action.item["spec"]["containers"][0]["command"] for action in made.start]
    return [int(command[command.index("--chunk-tokens") + 1]) for command in commands]


def _drained(made):
    return [action.name for action in made.leave if isinstance(action, DrainWorker)]


def _recalled(made):
    return [action.name for action in made.recall]


def _deleted(made):
    return [action.ref.name for action in made.leave if isinstance(action, Delete)]


def test_new_pods_have_free_names_and_are_taken_from_nobody(planned):
    made = planned(_pod(NEW), target=3, bounds=(2, 0))
    assert [action.item["metadata"]["name"] for action in made.start] == ["demo-decode-1", "demo-decode-2"]
    assert planned(target=1).start[0].item["metadata"]["name"] == "demo-decode-0"
    assert not any(action.force for action in made.start)
    fewer = made.holding_back(1)
    assert (fewer.start, fewer.held_back) == (made.start[:1], 1)


def test_a_paused_rollout_makes_workers_of_the_good_revision_again(planned):
    pods = _pod(GOOD), _pod(NEW, ready=False, refused="no such flag")
    assert _chunks(planned(*pods, pace=Pace.PAUSE)) == [GOOD]
    assert _chunks(planned(*pods, pace=Pace.PAUSE, good=None)) == [], "no revision was ever whole"


def test_old_workers_go_the_idlest_first_and_those_of_the_good_revision_last(planned):
    assert _drained(planned(_pod(GOOD, busy=3), _pod(GOOD, busy=1), bounds=(0, 1))) == ["demo-decode-1"]
    assert _drained(planned(_pod(GOOD, busy=1), _pod(GOOD, busy=3), bounds=(0, 1))) == ["demo-decode-0"]
    assert _drained(planned(_pod(OTHER, busy=3), _pod(GOOD, busy=1), bounds=(0, 1))) == ["demo-decode-0"]
    assert _drained(planned(_pod(GOOD), _pod(GOOD, state=None), bounds=(0, 1))) == ["demo-decode-1"], "the newest"


def test_of_workers_that_are_not_ready_the_newest_goes_first(planned):
    starting = [_pod(NEW, ready=False), _pod(NEW, ready=False)]
    assert _deleted(planned(*starting, target=1)) == ["demo-decode-1"]


def test_a_worker_of_no_use_is_deleted_and_takes_room_until_it_is_gone(planned):
    made = planned(_pod(NEW), _pod(GOOD), _pod(OTHER, ready=False))
    assert _deleted(made) == ["demo-decode-2"]
    assert (made.leaving, made.start) == (1, ())


def test_what_is_left_to_do_is_counted(planned):
    lost, leaving = {"leaving": True, "lost": True}, {"draining_since": 999.0}
    gone = leaving | {"leaving": True}
    made = planned(_pod(NEW), _pod(NEW, **gone), _pod(GOOD, **leaving), _pod(GOOD), _pod(GOOD, ready=False, **lost))
    assert (made.target, made.current, made.old, made.leaving, made.paused) == (2, 1, 2, 2, False)
    assert planned(_pod(GOOD), pace=Pace.PAUSE).paused


@pytest.mark.parametrize(
    ("pods", "whole"),
    [
        ([_pod(NEW), _pod(NEW)], True),
        ([_pod(NEW), _pod(NEW), _pod(NEW)], True),
        ([_pod(NEW)], False),
        ([_pod(NEW), _pod(NEW, ready=False)], False),
        ([_pod(NEW), _pod(NEW), _pod(GOOD)], False),
        ([_pod(NEW), _pod(NEW), _pod(OTHER, ready=False)], False),
    ],
)
def test_a_pool_is_whole_when_all_that_it_needs_is_new_and_ready(planned, pods, whole):
    assert planned(*pods).whole is whole


@pytest.mark.parametrize(
    ("pods", "good", "returnable"),
    [([_pod(OTHER)], None, True), ([], GOOD, True), ([_pod(OTHER)], GOOD, True), ([], None, False)],
)
def test_there_is_a_way_back_with_old_workers_or_a_good_revision(build, pods, good, returnable):
    observed = _observed(build, (1, 0), [_pod(NEW, ready=False), *pods])
    failed = _revisions(build, good, failure=Failure(conditions.ROLLOUT_FAILED, "no such flag"))
    (standing,) = pool_plan.pool_rollouts(observed, {"decode": failed}, {"decode": PoolTarget(2)}).values()
    assert standing.returnable is returnable
    assert (standing.old.ready, standing.new.starting, standing.target) == (len(pods), 1, 2)
    assert (standing.changing, standing.failing) == (True, True)


def test_without_surge_prefill_gives_workers_up_first(build):
    observed = _observed(build, (0, 1), [_pod(GOOD), _pod(GOOD, role="prefill")])
    found = {role: _revisions(build, GOOD, role) for role in ("prefill", "decode")}
    at = pool_plan.pool_rollouts(observed, found, dict.fromkeys(found, PoolTarget(1)))
    made = pool_plan.plan_pools(observed, found, at, True, dict.fromkeys(found, RollingUpdate(0, 1)))
    assert (_drained(made["prefill"]), _drained(made["decode"])) == (["demo-decode-1"], [])


FAILED = {"failed": True, "ready": False}
DRAINED, TOLD = WorkerState(0, True, "ucx:tcp"), WorkerState(1, True, "ucx:tcp")
DELETE = Delete(Ref("Pod", "default", "demo-decode-0"), "uid-demo-decode-0")
DRAIN = DrainWorker("demo-decode-0", "127.0.0.1:1", TLS)


@pytest.mark.parametrize(
    ("pod", "target", "acts"),
    [
        ({}, 1, []),
        ({"ready": False}, 0, [DELETE]),
        # What ended for good is deleted once, when it is old enough, whether chosen to leave or not.
        (FAILED | {"age": 10.0}, 0, [DELETE]),
        (FAILED | {"age": 20.0, "failures": 1}, 0, [DELETE]),
        (FAILED | {"age": 19.0, "failures": 1}, 0, []),
        (FAILED | {"age": 9.0}, 1, []),
        (FAILED | {"age": 9.0}, 0, []),
        (FAILED | {"age": 10.0, "leaving": True}, 1, []),
        # Who was chosen stays until nothing runs there, and no longer than 120 seconds.
        ({"draining_since": 999.0, "state": DRAINED}, 0, [DELETE]),
        ({"draining_since": 999.0, "state": DRAINED, "leaving": True}, 0, []),
        ({"draining_since": 999.0, "state": TOLD}, 0, []),
        ({"draining_since": 880.0, "state": TOLD}, 0, [DELETE]),
        ({"draining_since": 999.0, "state": None}, 0, []),
        ({"draining_since": 999.0, "ready": False}, 0, [DELETE]),
        ({"draining_since": 999.0}, 0, [DRAIN]),
    ],
)
def test_when_a_worker_is_told_to_leave_and_when_it_is_deleted(planned, pod, target, acts):
    assert list(planned(_pod(NEW, **pod), target=target).leave) == acts


def _failures(made):
    return [a.item["metadata"].get("annotations", {}).get(common.ANNOTATION_FAILURES) for a in made.start]


@pytest.mark.parametrize(
    ("before", "age", "written"),
    [
        (0, 9.0, []),
        (0, 10.0, ["1"]),
        (1, 19.0, []),
        (1, 20.0, ["2"]),
        (4, 159.0, []),
        (4, 160.0, ["5"]),
        (5, 299.0, []),
        (5, 300.0, ["6"]),
        (9999, 300.0, ["10000"]),
        (0, 599.0, ["1"]),
        (5, 600.0, ["1"]),  # it lived long enough
    ],
)
def test_worker_that_failed_is_replaced_after_a_time_that_doubles(planned, before, age, written):
    """A node that refuses or evicts all that is started would have a new one every ten seconds, for ever."""
    made = planned(_pod(NEW, **FAILED, failures=before, age=age), target=1, bounds=(0, 1))
    assert _failures(made) == written
    assert _deleted(made) == ["demo-decode-0"] * len(written)
    assert [a.item["metadata"]["name"] for a in made.start] == ["demo-decode-1"] * len(written)


def test_only_those_that_take_the_place_of_one_that_failed_wait_for_longer(planned):
    failed = _pod(NEW, **FAILED, failures=3, age=100.0)
    assert _failures(planned(failed, _pod(NEW), target=4, bounds=(2, 0))) == ["4", None, None]
    gone = _pod(NEW, **FAILED, failures=3, age=100.0, leaving=True)
    assert _failures(planned(gone, target=1)) == [None]


def _draining(chunk=NEW, busy=1, since=999.0, stopping=False, **more):
    state = WorkerState(busy, True, "ucx:tcp", stopping=stopping)
    return _pod(chunk, **{"draining_since": since, "state": state} | more)


def test_draining_workers_are_recalled_before_others_start(planned):
    """The busiest first. The mark goes with the answer, by whoever made it."""
    made = planned(_pod(NEW), _draining(busy=1), _draining(busy=2), _draining(busy=0), target=3)
    assert _recalled(made) == ["demo-decode-2", "demo-decode-1"]
    assert (made.start, made.leaving) == ((), 1)
    assert _deleted(made) == ["demo-decode-3"], "nothing runs there, and nobody needs it"
    item = made.recall[0].item["metadata"]
    assert (item["uid"], item["labels"]) == ("uid-demo-decode-2", {"serving.legato.dev/serving": "true"})
    assert "annotations" not in item
    assert (made.recall[0].address, made.recall[0].tls) == ("127.0.0.1:1", TLS)
    made = planned(_pod(NEW), _draining(), target=4, bounds=(2, 0))
    assert (_recalled(made), len(made.start)) == (["demo-decode-1"], 2)


def test_recall_needs_no_surge_and_tells_again_until_the_mark_is_gone(planned):
    told = WorkerState(1, False, "ucx:tcp")
    made = planned(_pod(NEW), _pod(NEW), _draining(), _draining(state=told), target=4, bounds=(0, 1))
    assert sorted(_recalled(made)) == ["demo-decode-2", "demo-decode-3"]
    assert (made.start, made.leave) == ((), ()), "and nobody is told to drain again"


def test_draining_worker_that_did_not_answer_once_is_asked_to_serve_again_before_another_starts(planned):
    made = planned(_pod(NEW), _draining(state=None), _draining(busy=0), target=3)
    assert (_recalled(made), made.start, made.leave) == (["demo-decode-2", "demo-decode-1"], (), ())


@pytest.mark.parametrize(
    "ended",
    [
        {"stopping": True},
        {"leaving": True},
        {"failed": True},
        {"lost": True},
        {"state": None, "ready": False},
        {"state": None, "address": ""},
        {"chunk": GOOD},
    ],
)
def test_another_starts_instead_of_a_worker_that_is_to_end_and_none_is_recalled(planned, ended):
    made = planned(_pod(NEW), _draining(**ended), target=2)
    assert (_recalled(made), len(made.start)) == ([], 1)


def test_worker_that_drains_of_itself_is_not_recalled(planned):
    made = planned(_pod(NEW), _draining(draining_since=None), target=2)
    assert (made.recall, made.start) == ((), ())


def test_worker_that_nobody_may_speak_to_drains_without_being_told(planned):
    """One that cannot prove who it is: a request to it would show the token to whoever answers. Kubernetes tells
    it, when it is deleted at the deadline.
    """
    mute = {"state": None, "address": "", "tls_secret": "gone"}
    made = planned(_pod(NEW), _pod(NEW, **mute), target=1)
    assert [type(action) for action in made.leave] == [Apply]
    assert made.leave[0].item["metadata"]["name"] == "demo-decode-1"
    assert planned(_pod(NEW), _draining(**mute), target=1).leave == ()
    assert _deleted(planned(_pod(NEW), _draining(since=1.0, **mute), target=1)) == ["demo-decode-1"]


def test_paused_rollout_recalls_workers_of_the_good_revision_only(planned):
    pods = _pod(GOOD), _draining(GOOD), _draining(NEW), _pod(NEW, ready=False, refused="no such flag")
    made = planned(*pods, pace=Pace.PAUSE)
    assert (_recalled(made), made.start) == (["demo-decode-1"], ())
    assert _recalled(planned(_pod(GOOD), _pod(NEW), _draining(GOOD), pace=Pace.PAUSE)) == []


NO_NODE = {"ready": False, "unschedulable": True, "message": "0/2 nodes: no GPU"}


@pytest.mark.parametrize("placeless", [NO_NODE, {"ready": False, "refused": "the weights need 2 GiB"}])
def test_no_more_workers_start_where_one_like_them_has_no_place(planned, placeless):
    """Whatever the wish. One of another revision may have another place."""
    made = planned(_pod(NEW), _pod(NEW, **placeless), target=9, bounds=(9, 0))
    assert (made.start, made.held_back, made.leave) == ((), 7, ())
    assert [pod.name for pod in made.waiting] == ["demo-decode-1"]
    assert made.resting
    assert _chunks(planned(_pod(GOOD), _pod(GOOD, **placeless), target=2)) == [NEW]


def test_revision_that_runs_nowhere_may_be_wrong_itself(planned):
    made = planned(_pod(GOOD), _pod(NEW, **NO_NODE), target=2)
    assert (made.waiting, made.resting) == ((), False)


def test_worker_without_a_place_goes_first_and_without_a_drain(planned):
    pods = _pod(NEW), _pod(NEW, **NO_NODE), _pod(NEW, ready=False), _pod(NEW, busy=0)
    made = planned(*pods, target=3)
    assert (_deleted(made), _drained(made)) == (["demo-decode-1"], [])


def test_a_ready_worker_is_marked_before_it_is_told(planned):
    mark, told = planned(_pod(NEW), target=0).leave
    assert mark.manager == common.DRAINER
    assert mark.item["metadata"]["uid"] == "uid-demo-decode-0"
    assert mark.item["metadata"]["labels"] == {"serving.legato.dev/serving": "false"}
    assert mark.item["metadata"]["annotations"] == {common.ANNOTATION_DRAINING: "1000.0"}
    assert told == DRAIN


def test_a_failed_worker_that_is_too_young_to_go_keeps_no_other(planned):
    assert _deleted(planned(_pod(NEW, ready=False), _pod(NEW, **FAILED), target=0)) == ["demo-decode-0"]
