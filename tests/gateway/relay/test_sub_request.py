"""State that each choice keeps when the choices of a request part."""

from dataclasses import fields

from legato_gateway.relay.lifecycle import Stage
from legato_gateway.relay.sub_request import SubRequest
from legato_protocol.wire.stream import Failed

FAILED = Failed("r", 2, "faulted", "why", "decode", True)
SHOWN = {"attempt": 3, "stage": Stage.WAITING, "started_on": {"u0"}, "recompute": True, "kv_revision": "r"}
SHOWN |= {"avoid": {"u1"}, "failures": 2, "faulted_at": "u1", "last_failure": FAILED}


def test_a_choice_that_goes_apart_keeps_what_the_attempts_have_shown():
    """Workers to avoid, failures and their places: else it would start over with a worker that failed it."""
    generation = object()
    sub = SubRequest("r", generation, (0, 1), **SHOWN)
    part = sub.split_off(1)
    fresh = SubRequest("r/1", generation, (1,))
    expected = {field.name: getattr(fresh, field.name) for field in fields(fresh)} | SHOWN
    assert {field.name: getattr(part, field.name) for field in fields(part)} == expected
    part.avoid.add("u2")
    part.started_on.clear()
    assert (sub.avoid, sub.started_on) == ({"u1"}, {"u0"}), "each has its own"
