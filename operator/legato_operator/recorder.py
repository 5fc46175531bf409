"""Records changes of an object for people, for example as Events. A failure to record never fails a pass."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from legato_operator.api import conditions
from legato_operator.cluster import Object


class Recorder(Protocol):
    async def record(self, about: Object, warning: bool, reason: str, note: str) -> None:
        """Records a note about an object; failures are ignored."""
        ...


async def record_changes(recorder: Recorder, about: Object, news: Sequence[Mapping[str, Any]]) -> None:
    """Records each condition whose status or reason differs from `about`; for a disruption, also each new message.

    The first conditions of a new service, and changes between calm reasons, are not recorded.
    """
    status = about.get("status", {})
    for condition in news:
        before = conditions.find(status, condition["type"])
        reason = condition["reason"]
        compared = ("status", "reason", *(("message",) if reason == conditions.DISRUPTED else ()))
        if any(before.get(key) != condition[key] for key in compared):
            failed = condition["status"] == "False" and (reason not in conditions.CALM or _is_outage(before, condition))
            state = f"{condition['type']} is {condition['status']}"
            note = f"{state}: {condition['message']}" if condition["message"] else state
            warning = failed or reason in conditions.ALARMING
            changed = before and (before["status"] != condition["status"] or reason not in conditions.CALM)
            if warning or changed:
                await recorder.record(about, warning, reason, note)


def _is_outage(before: Mapping[str, Any], condition: Mapping[str, Any]) -> bool:
    """True if a service that was ready no longer is, and nobody asked for its end."""
    was_ready = condition["type"] == conditions.READY and before.get("status") == "True"
    return was_ready and condition["reason"] != conditions.DELETING
