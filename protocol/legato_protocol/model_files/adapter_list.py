"""The list of a service's adapters, in a file that its processes read again when it changes.

Workers open the listed adapters and gateways let clients name them, so adapters are added and removed without a
restart. `adapter_file` follows the file.
"""

import hashlib
from typing import Final

import msgspec

FILE: Final = "adapters.json"  # its name in the mounted folder


class AdapterEntry(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An adapter: `path` is a folder as PEFT saves it, mounted in workers; `max_rank` bounds this adapter's rank."""

    name: str
    path: str
    max_rank: int | None = None


class AdapterList(msgspec.Struct, frozen=True):
    """The adapters of one file. `id` identifies its content, so that the operator knows which list was read."""

    entries: tuple[AdapterEntry, ...] = ()
    id: str = ""  # empty: there was no file yet

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.entries)


class InvalidList(ValueError):
    """The content of a file is not a list of adapters. The text says why."""


_decoder: "msgspec.json.Decoder[tuple[AdapterEntry, ...]]" = msgspec.json.Decoder(tuple[AdapterEntry, ...])


def text(entries: tuple[AdapterEntry, ...]) -> str:
    """Returns the content of a file with these adapters."""
    return msgspec.json.encode(entries).decode()


def read(content: bytes) -> AdapterList:
    """Returns the list in a file's content. Raises InvalidList."""
    try:
        entries = _decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidList(f"not a list of adapters: {error}") from None
    names = [entry.name for entry in entries]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidList(f"{', '.join(twice)} is listed more than once")
    return AdapterList(entries, hashlib.sha256(content).hexdigest()[:16])
