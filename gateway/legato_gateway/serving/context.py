"""The collaborators of all handlers."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from legato_gateway.clients.identify import Clients
from legato_gateway.request import Relay
from legato_gateway.serving.bodies.budget import BodyBudget
from legato_gateway.serving.bodies.preparation import PreparationPool
from legato_gateway.serving.bodies.slots import LargeBodySlots
from legato_gateway.serving.deadline import Deadline, header_seconds
from legato_gateway.serving.event_stream import StreamPolicy
from legato_gateway.serving.model_serving import ModelServing
from legato_gateway.tokenizer.block_cache import CacheUse
from legato_protocol import names
from legato_protocol.settings import durations

MAX_BODY_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class ServingContext:
    """The collaborators of the handlers.

    A request without a deadline ends after `default_deadline` seconds without progress, and any request after
    `max_duration` seconds.
    """

    model_serving: ModelServing  # without its adapters, which change
    relay: Relay
    adapters: Callable[[], tuple[str, ...]] = tuple  # names of the adapters served now
    length: Callable[[], int] | None = None  # current tokens of the longest sequence; None: `model_serving` has it
    clients: Clients = field(default_factory=Clients)
    streams: StreamPolicy = field(default_factory=StreamPolicy)
    default_deadline: float = 600.0
    max_duration: float = durations.LONGEST
    clock: Callable[[], float] = time.monotonic
    max_body_bytes: int = MAX_BODY_BYTES
    pending_bodies: BodyBudget = field(default_factory=BodyBudget)
    preparation: PreparationPool = field(default_factory=PreparationPool)
    body_slots: LargeBodySlots = field(default_factory=LargeBodySlots)
    token_cache: CacheUse = field(default_factory=CacheUse)

    @property
    def current_model(self) -> ModelServing:
        """The model with its adapters and longest sequence of now. A request keeps the state at its check."""
        model = self.model_serving.model
        if self.length is not None:
            model = replace(model, context=self.length())
        return replace(self.model_serving, model=model, adapters=self.adapters())

    def deadline(self, headers: Mapping[str, str]) -> Deadline:
        """Returns the deadline of a request that arrives now. Raises BadRequest."""
        now, given = self.clock(), headers.get(names.HEADER_DEADLINE)
        if given is None:
            return Deadline(now, now + self.max_duration, self.clock, self.default_deadline)
        return Deadline(now, now + min(header_seconds(given), self.max_duration), self.clock)
