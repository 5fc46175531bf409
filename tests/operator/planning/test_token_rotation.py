"""A token is made, replaced in steps that wait for all pods, and healed; the same observation gives the same step."""

import dataclasses

import pytest
from planned import actions, observed, report

from legato_operator.api import parsing
from legato_operator.manifests import common, placement, secret
from legato_operator.manifests.secret import ServiceToken
from legato_operator.observing.observed import Pod, WorkerState
from legato_operator.planning import token_rotation
from legato_operator.planning.actions import Apply
from legato_operator.planning.plan import plan
from legato_operator.planning.token_rotation import STARTING
from legato_protocol.security.service_tokens import token_id

PLACEMENT = placement.local(("legato",))
NOW = 1_000_000.0
HELD = ServiceToken("a", since=NOW - 100, changed=NOW - 100, written=token_id("a"))


def worker(*tokens, ready=True, answers=True, **fields):
    ids = tuple(map(token_id, tokens))
    state = WorkerState(0, False, "tcp", tokens=ids) if answers else None
    return Pod("demo-decode-0", "uid", "decode", "r", "0", ready, False, state=state, **fields)


def gateway(*tokens):
    made = report(tokens=tuple(map(token_id, tokens)))
    return Pod("demo-gateway-0", "uid-g", "gateway", "r", "0", True, False, report=made)


@pytest.fixture
def step(build):
    def one(held, *pods, asked="", lifetime=0.0, **changes):
        annotations = {common.ANNOTATION_ROTATE_TOKEN: asked} if asked else {}
        known = {"has_token": held is not None, "token": held, "now": NOW, "annotations": annotations} | changes
        seen = observed(build(), pods=pods, **known)
        steps = list(token_rotation.steps(seen, dataclasses.replace(PLACEMENT, token_lifetime=lifetime)))
        assert len(steps) <= 1
        return steps[0] if steps else None

    return one


def read_back(build, made):
    """Reads the Secret back as an API server returns it."""
    item = secret.manifest(parsing.read_service(build()), made.token)
    return secret.read({**item, "metadata": {**item["metadata"], "creationTimestamp": "2026-01-01T00:00:00Z"}})


def test_a_token_in_use_is_left_alone(step):
    assert step(HELD, worker("a"), gateway("a")) is None


def test_a_new_service_gets_a_random_token_without_a_word(step, build):
    made = step(None)
    assert (made.fresh, made.reason, made.token.since) == ("token", "", NOW)
    asked = step(None, asked="of old")
    assert asked.token.answered == "of old", "a manifest that is applied anew asks for nothing"


def test_a_lost_token_is_as_it_was_where_it_is_known_and_another_one_otherwise(step):
    staged = dataclasses.replace(HELD, next="b")
    made = step(None, worker("a", "b"), remembered_token=staged)
    assert (made.token, made.fresh, made.reason) == (dataclasses.replace(staged, changed=NOW), "", "TokenRestored")
    made = step(None, worker("a"))
    assert (made.fresh, made.reason) == ("token", "TokenLost")


def test_an_edit_becomes_a_rotation_to_what_was_written(step):
    edited = dataclasses.replace(HELD, token="x")
    made = step(edited, worker("a"), remembered_token=dataclasses.replace(HELD, previous="z"))
    assert (made.token.token, made.token.next, made.token.previous) == ("a", "x", "z")
    assert (made.fresh, made.reason) == ("", "TokenEdited")
    made = step(edited, worker("a"))
    assert (made.token.token, made.token.next) == ("x", ""), "nobody knows the one before"


def test_an_edited_token_is_shown_after_the_one_that_pods_know(build):
    empty = observed(build(), remembered_token=HELD)
    assert dataclasses.replace(empty, token=dataclasses.replace(HELD, token="x")).tokens == ("a", "x")
    rotated = ServiceToken("b", previous="a", written=token_id("b"))
    assert dataclasses.replace(empty, token=rotated).tokens == ("b", "a")
    assert empty.tokens == ("a",), "lost"


def test_a_rotation_is_looked_at_again_soon(build):
    quiet = dataclasses.replace(PLACEMENT, requeue_after=30.0, resync_after=30.0)
    assert plan(observed(build(), token=HELD, now=NOW), quiet).requeue_after == 30.0
    assert plan(observed(build(), token=dataclasses.replace(HELD, next="b"), now=NOW), quiet).requeue_after == 6.0


def test_something_that_is_watched_ends_with_the_secret(build):
    held = dataclasses.replace(HELD, uid="of the Secret")
    made = plan(observed(build(), token=held), placement.kubernetes(placement.Containers("engine:1", "gateway:1")))
    (item,) = [each.item for each in actions(made, Apply) if each.item["metadata"]["name"] == "demo-token"]
    assert item["metadata"]["ownerReferences"][0]["uid"] == "of the Secret"
    assert item["kind"] in common.OWNED_KINDS


def test_all_steps_of_a_rotation_wait_for_all_pods(step, build):
    made = step(HELD, worker("a"), asked="now")
    assert (made.fresh, made.token.answered, made.reason) == ("next", "now", "TokenRotating")
    held = read_back(build, dataclasses.replace(made, token=dataclasses.replace(made.token, next="b")))
    assert step(held, worker("a"), gateway("a", "b"), asked="now") is None, "the worker does not take it yet"
    assert step(held, worker("a", "b"), gateway("a"), asked="now") is None, "nor the gateway"
    made = step(held, worker("a", "b"), gateway("a", "b"), asked="now")
    assert (made.token.token, made.token.next, made.token.previous, made.token.since) == ("b", "", "a", NOW)
    held = read_back(build, made)
    assert step(held, worker("a", "b"), gateway("b", "a"), asked="now") is None, "one still shows the previous one"
    made = step(held, worker("b", "a"), gateway("b", "a"), asked="now")
    assert (made.token.token, made.token.known, made.reason) == ("b", ("b",), "TokenRotated")
    assert step(read_back(build, made), worker("b"), gateway("b"), asked="now") is None


def test_a_token_is_replaced_when_it_is_old_and_when_another_request_came(step):
    assert step(HELD, lifetime=101.0) is None
    assert step(HELD, lifetime=100.0).fresh == "next"
    answered = dataclasses.replace(HELD, answered="one")
    assert step(answered, asked="one") is None
    assert step(answered, asked="two").fresh == "next"


def test_a_pod_that_does_not_say_what_it_reads_holds_up_a_step(step):
    staged = dataclasses.replace(HELD, next="b", changed=NOW - STARTING)
    taken = worker("a", "b")
    assert step(staged, taken) is not None
    assert step(staged, taken, worker(answers=False)) is None, "ready: perhaps of an older release"
    assert step(staged, taken, worker()) is None, "of an older release"
    assert step(staged, taken, worker(ready=False, answers=False)) is not None, "it starts, and had time to read"
    early = dataclasses.replace(staged, changed=NOW - STARTING + 1)
    assert step(early, taken, worker(ready=False, answers=False)) is None
    assert step(early, taken, worker(answers=False, failed=True), worker(answers=False, lost=True)) is not None


def test_a_token_of_an_operator_that_knew_no_rotation_is_taken_over(step, build):
    made = step(dataclasses.replace(HELD, written=""))
    assert (made.token.token, made.fresh, made.reason) == ("a", "", "")
    assert read_back(build, made).written == token_id("a")


def test_who_only_knows_that_there_is_one_does_nothing(step):
    assert step(None, has_token=True) is None


def test_the_secret_tells_all_that_a_rotation_has_to_know(build):
    held = ServiceToken("a", "b", "c", since=NOW, changed=NOW + 1, answered="now", written=token_id("a"))
    made = token_rotation.SetToken(held)
    assert read_back(build, made) == held
    assert "a" not in repr(made).replace("SetToken", "").replace("reason", "")[:9], "tokens are in no log"


@pytest.mark.parametrize("data", [{}, {"token": ""}, {"token": "8J"}, {"token": "YSBi"}, {"next": "YQ=="}])
def test_what_is_no_token_is_none(data):
    assert secret.read({"metadata": {}, "data": data}) is None


def test_annotations_by_somebody_s_hand_count_as_none():
    annotations = {f"serving.legato.dev/token-{name}": "soon" for name in ("since", "changed")}
    metadata = {"annotations": annotations, "creationTimestamp": "1970-01-01T00:01:00Z"}
    held = secret.read({"metadata": metadata, "data": {"token": "YQ=="}})
    assert (held.since, held.changed) == (60.0, 60.0)
