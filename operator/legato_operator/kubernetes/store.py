"""What the operator knows of the cluster: objects of the watched kinds, and whether that can be relied on."""

from collections.abc import Mapping, Sequence

from legato_operator.cluster import Object, ObjectList
from legato_operator.kubernetes.known_objects import KnownObjects, Missed


class Store:
    """Fed by watches, by lists that audit them and by what is written here. Belongs to one event loop."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self.known: Mapping[str, KnownObjects] = {kind: KnownObjects() for kind in kinds}
        self.trusted = False  # whether watches tell of every change

    def told(self, item: Object, gone: bool) -> None:
        """A watch told of this object, or of its end."""
        self.known[item["kind"]].told(item, gone)

    def audited(self, kind: str, listing: ObjectList) -> Missed:
        """What watches missed, as a list of all objects of a kind shows."""
        return self.known[kind].audited(listing)

    def trust(self, watches: bool) -> None:
        """An audit found that watches tell of every change, or not."""
        self.trusted = watches

    def forget(self) -> None:
        """Watches begin anew."""
        self.trusted = False
        for known in self.known.values():
            known.forget()

    def is_current(self, kind: str) -> bool:
        """Whether what is known of a kind is what there is, but for what is on its way."""
        return self.trusted and kind in self.known
