"""What core and server tell each other of adapters that are offered. No torch in here."""

import msgspec

from legato_protocol.messages import Value


class AdapterOffer(Value, frozen=True):
    """What came of a list of adapters: `Hello.adapters`, `Hello.former_adapters`, and why others cannot be had."""

    list: str  # its id
    adapters: dict[str, str] = msgspec.field(default_factory=dict)
    former: tuple[str, ...] = ()
    problems: dict[str, str] = msgspec.field(default_factory=dict)  # by name
