"""The table of a sub-request's life: what must be in it, what must not, and that the docs show it."""

from pathlib import Path

import pytest

from legato_gateway.relay import lifecycle
from legato_gateway.relay.lifecycle import (
    PLACED,
    TABLE,
    IllegalEvent,
    LifecycleAction,
    LifecycleEvent,
    LifecycleTransition,
    Stage,
)

DOCS = Path(__file__).parents[3] / "docs" / "requests.md"
ALIVE = [stage for stage in Stage if stage is not Stage.ENDED]


def test_what_is_not_in_the_table_raises():
    for stage in Stage:
        for event in LifecycleEvent:
            if (stage, event) not in TABLE:
                with pytest.raises(IllegalEvent, match=stage.value):
                    lifecycle.step(stage, event)


def test_nothing_follows_the_end():
    assert not [event for stage, event in TABLE if stage is Stage.ENDED]


def test_every_stage_is_reached():
    reached, edge = {Stage.ARRIVED}, [Stage.ARRIVED]
    while edge:
        at = edge.pop()
        for to in {move.stage for (stage, _), move in TABLE.items() if stage is at} - reached:
            reached.add(to)
            edge.append(to)
    assert reached == set(Stage)


@pytest.mark.parametrize("stage", ALIVE)
def test_the_gateway_can_stop_it_at_any_stage_and_keeps_nothing(stage):
    assert TABLE[stage, LifecycleEvent.STOPPED].stage is Stage.ENDED
    for (_, _), move in TABLE.items():
        assert (move.stage is Stage.ENDED) == (LifecycleAction.FORGET in move.actions)


@pytest.mark.parametrize("stage", PLACED)
def test_workers_are_told_when_their_work_is_over(stage):
    """Whatever takes a placed sub-request from its workers cancels it there, unless it goes on there in parts."""
    for name in ("STOPPED", "FAILED", "FAILED_OFTEN", "WORKER_LOST"):
        assert TABLE[stage, LifecycleEvent[name]].actions[0] is LifecycleAction.CANCEL


def test_a_migration_that_does_not_happen_leaves_the_old_attempt_alone():
    move = TABLE[Stage.MIGRATING, LifecycleEvent.MIGRATION_FAILED]
    assert move.stage is Stage.DECODING
    assert LifecycleAction.CANCEL_TARGET in move.actions
    assert LifecycleAction.CANCEL not in move.actions
    assert LifecycleAction.CANCEL in TABLE[Stage.MIGRATING, LifecycleEvent.FINISHED].actions, "the target waits for it"


def test_the_diagram_in_the_docs_is_made_from_the_table():
    assert lifecycle.diagram() in DOCS.read_text(), "run: python -m legato_gateway.relay.lifecycle docs/requests.md"
    assert lifecycle.rewrite(DOCS.read_text()) == DOCS.read_text()


def test_the_docs_explain_every_stage():
    assert all(f"| `{stage.value}` |" in DOCS.read_text() for stage in Stage)


def test_a_changed_table_changes_the_page(monkeypatch):
    row = (Stage.WAITING, LifecycleEvent.PLACED)
    monkeypatch.setitem(TABLE, row, LifecycleTransition(Stage.DECODING))
    assert lifecycle.rewrite(DOCS.read_text()) != DOCS.read_text()
