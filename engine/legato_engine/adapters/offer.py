"""The core's report of offered adapters to the server. No torch."""

import msgspec

from legato_protocol.wire.messages import Value


class AdapterOffer(Value, frozen=True):
    """The result of a list of adapters: `Hello.adapters`, `Hello.former_adapters`, and problems of others."""

    list: str  # its id
    adapters: dict[str, str] = msgspec.field(default_factory=dict)
    former: tuple[str, ...] = ()
    problems: dict[str, str] = msgspec.field(default_factory=dict)  # by name
