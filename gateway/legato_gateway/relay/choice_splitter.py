"""Splits a sub-request with several choices into parts with one unfinished choice each.

Choices share a prefill. Once they have tokens, they differ, and each continues on its own.
"""

from collections.abc import Callable

from legato_gateway.relay.context import RelayContext
from legato_gateway.relay.dispatcher import SubRequestDispatcher
from legato_gateway.relay.lifecycle import LifecycleEvent
from legato_gateway.relay.sub_request import SubRequest


class ChoiceSplitter:
    """`step` applies an event to a sub-request."""

    def __init__(
        self,
        context: RelayContext,
        dispatcher: SubRequestDispatcher,
        step: Callable[[SubRequest, LifecycleEvent], None],
    ) -> None:
        self._registry = context.registry
        self._history = context.history
        self._dispatcher = dispatcher
        self._step = step

    def unlike_parts(self, sub: SubRequest) -> list[SubRequest]:
        """Returns `sub`, or one part for each unfinished choice if one of them has tokens."""
        if len(sub.choices) == 1 or not any(sub.generation.choices[choice].tokens for choice in sub.choices):
            return [sub]
        return self._split(sub)

    def split_in_place(self, sub: SubRequest) -> list[SubRequest]:
        """Splits a running `sub` into one part per unfinished choice, and notifies its worker of their ids."""
        place = sub.place
        assert place is not None
        parts = self._split(sub)
        self._registry.split(sub.id, parts)
        for part in parts:
            self._registry.place(part, place)
        self._dispatcher.split(sub.id, place, {part.choices[0]: part.id for part in parts})
        return parts

    def _split(self, sub: SubRequest) -> list[SubRequest]:
        parts = [sub.split_off(choice) for choice in sub.open]
        for part in parts:
            self._history.also(part.id, sub.generation.route)
            self._registry.add(part)
        self._step(sub, LifecycleEvent.SPLIT)
        return parts
