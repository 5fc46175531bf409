"""The adapters of a service, as a file tells its processes, which read it again when it changes.

Workers open what it names, and gateways let clients name it; so adapters come and go without a restart. `adapter_file`
follows it.
"""

import hashlib
from typing import Final

import msgspec

FILE: Final = "adapters.json"  # its name in the folder that is mounted


class AdapterEntry(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """`path` is a folder as PEFT saves it, where workers see it; `max_rank` is a bound of its own."""

    name: str
    path: str
    max_rank: int | None = None


class AdapterList(msgspec.Struct, frozen=True):
    """`id` differs between any two files: by it, the operator knows what a process has read."""

    entries: tuple[AdapterEntry, ...] = ()
    id: str = ""  # empty: there was no file yet

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.entries)


class InvalidList(ValueError):
    """A file holds no list of adapters. The text says why."""


_decoder: "msgspec.json.Decoder[tuple[AdapterEntry, ...]]" = msgspec.json.Decoder(tuple[AdapterEntry, ...])


def text(entries: tuple[AdapterEntry, ...]) -> str:
    """The content of a file that names these."""
    return msgspec.json.encode(entries).decode()


def read(content: bytes) -> AdapterList:
    """What a file says. Raises InvalidList."""
    try:
        entries = _decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidList(f"not a list of adapters: {error}") from None
    names = [entry.name for entry in entries]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidList(f"{', '.join(twice)} is listed more than once")
    return AdapterList(entries, hashlib.sha256(content).hexdigest()[:16])
