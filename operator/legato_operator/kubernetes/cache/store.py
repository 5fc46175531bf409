"""A cache of the watched kinds, which is used only while audits find that watches report every change."""

from collections.abc import Mapping, Sequence

from legato_operator.cluster import Object, ObjectList
from legato_operator.kubernetes.cache.known_objects import KnownObjects, Missed


class WatchedStore:
    """Caches fed by watches, by lists that audit them, and by the operator's writes. Belongs to one event loop."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self.known: Mapping[str, KnownObjects] = {kind: KnownObjects() for kind in kinds}
        self.trusted = False  # True if watches report every change

    def report(self, item: Object, gone: bool) -> None:
        """Stores an object that a watch reported, or removes it if it is gone."""
        self.known[item["kind"]].report(item, gone)

    def audit(self, kind: str, listing: ObjectList) -> Missed:
        """Returns the changes that watches missed, given a list of all objects of a kind."""
        return self.known[kind].audit(listing)

    def trust(self, watches: bool) -> None:
        """Sets if watches report every change, according to an audit."""
        self.trusted = watches

    def forget(self) -> None:
        """Clears the caches, because watches restart."""
        self.trusted = False
        for known in self.known.values():
            known.forget()

    def is_current(self, kind: str) -> bool:
        """True if the cache of a kind is current, except for events in transit."""
        return self.trusted and kind in self.known
