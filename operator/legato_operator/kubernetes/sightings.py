"""Whether watches tell of every change: what they told, held against what lists show."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from legato_operator.cluster import Object

Key = tuple[str, str]  # kind and uid


@dataclass(frozen=True)
class Missed:
    """What no watch told of in time."""

    changed: tuple[Object, ...] = ()
    ended: int = 0

    def __len__(self) -> int:
        return len(self.changed) + self.ended


class Sightings:
    """The newest version of each object that a watch has told of. Told from one thread, asked from another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: dict[Key, int] = {}
        self._awaited: dict[Key, int] = {}
        self._absent: set[Key] = set()  # told of, and not listed the last time: it ended, or began just then

    def saw(self, item: Object, gone: bool) -> None:
        """A watch told of this object, or of its end."""
        key = _key(item)
        with self._lock:
            if gone:
                self._versions.pop(key, None)
            else:
                self._versions[key] = max(_version(item), self._versions.get(key, 0))

    def forget(self) -> None:
        """The watches begin again, and tell of all there is once more."""
        with self._lock:
            self._versions.clear()

    def missed(self, listed: Iterable[Object]) -> Missed:
        """Of what was listed, or not listed any more, the last time. What is so now must be told of by the next."""
        items = {_key(item): item for item in listed}
        with self._lock:
            late = [key for key, version in self._awaited.items() if self._versions.get(key, 0) < version]
            self._awaited = {
                key: _version(item) for key, item in items.items() if self._versions.get(key, 0) < _version(item)
            }
            ended = self._absent.intersection(key for key in self._versions if key not in items)
            for key in ended:  # whose end fell into a gap between two watches
                del self._versions[key]
            self._absent = {key for key in self._versions if key not in items}
        return Missed(tuple(items[key] for key in late if key in items), len(ended))


def _key(item: Object) -> Key:
    return item["kind"], item["metadata"]["uid"]


def _version(item: Object) -> int:
    return int(item["metadata"]["resourceVersion"])
