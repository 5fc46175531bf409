"""The table of a sub-request's life, and its diagram in the docs."""

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

ROOT = Path(__file__).parents[3]
README = "gateway/legato_gateway/relay/README.md"


def test_every_stage_is_reached_and_nothing_follows_the_end_or_is_outside_the_table():
    for stage in Stage:
        for event in LifecycleEvent:
            if (stage, event) not in TABLE:
                with pytest.raises(IllegalEvent, match=stage.value):
                    lifecycle.step(stage, event)
    assert not [event for stage, event in TABLE if stage is Stage.ENDED]
    reached, edge = {Stage.ARRIVED}, [Stage.ARRIVED]
    while edge:
        at = edge.pop()
        new = {move.stage for (stage, _), move in TABLE.items() if stage is at} - reached
        reached |= new
        edge += new
    assert reached == set(Stage)


def test_the_gateway_can_stop_it_at_any_stage_and_keeps_nothing():
    assert all(TABLE[stage, LifecycleEvent.STOPPED].stage is Stage.ENDED for stage in Stage if stage is not Stage.ENDED)
    for move in TABLE.values():
        assert (move.stage is Stage.ENDED) == (LifecycleAction.FORGET in move.actions)


@pytest.mark.parametrize("stage", PLACED)
def test_work_that_is_over_is_cancelled_at_its_workers(stage):
    for name in ("STOPPED", "FAILED", "FAILED_OFTEN", "WORKER_LOST"):
        assert TABLE[stage, LifecycleEvent[name]].actions[0] is LifecycleAction.CANCEL


def test_a_migration_that_does_not_happen_leaves_the_old_attempt_alone():
    move = TABLE[Stage.MIGRATING, LifecycleEvent.MIGRATION_FAILED]
    assert move.stage is Stage.DECODING
    assert LifecycleAction.CANCEL_TARGET in move.actions
    assert LifecycleAction.CANCEL not in move.actions
    assert LifecycleAction.CANCEL in TABLE[Stage.MIGRATING, LifecycleEvent.FINISHED].actions, "the target waits for it"


def test_the_readme_has_the_diagram_of_the_table_and_the_docs_explain_every_stage(monkeypatch):
    page = (ROOT / README).read_text()
    assert lifecycle.diagram() in page, f"run: python -m legato_gateway.relay.lifecycle {README}"
    assert lifecycle.rewrite(page) == page
    docs = (ROOT / "docs" / "requests.md").read_text()
    assert all(f"| `{stage.value}` |" in docs for stage in Stage)
    monkeypatch.setitem(TABLE, (Stage.WAITING, LifecycleEvent.PLACED), LifecycleTransition(Stage.DECODING))
    assert lifecycle.rewrite(page) != page
