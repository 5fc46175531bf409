"""The frames of released versions, in files that stay as they are: what peers of that version send and understand.

Run it, and it writes `tests/protocol/frames/VERSION.jsonl` for the version in `pyproject.toml`: do so when that version
is released. Each line is a message, or a part of messages, in one channel: its fields in the order of the wire as JSON
schema, how many of them must be there, and (of a message) a frame in hexadecimal digits.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import sample_messages

from legato_protocol.wire import handoff, kv_events, stream

FOLDER = Path(__file__).parents[1] / "protocol" / "frames"
RELEASES = sorted(path.stem for path in FOLDER.glob("*.jsonl"))


@dataclass(frozen=True)
class Channel:
    """Messages that go one way between two processes."""

    decode: Callable[[bytes], Any]
    messages: Any  # their union
    samples: Sequence[msgspec.Struct]

    def schemas(self):
        """By the name of a message or part of one."""
        _, components = msgspec.json.schema_components([self.messages])
        return {
            name: {"fields": [_type(field) for field in each["prefixItems"]], "required": each.get("minItems", 0)}
            for name, each in components.items()
        }

    def lines(self):
        frames = {type(sample).__name__: stream.encode(sample).hex() for sample in self.samples}
        for name, schema in self.schemas().items():
            yield {"name": name, **schema, "frame": frames.get(name)}


CHANNELS = {
    "gateway to worker": Channel(stream.decode_to_worker, stream.ToWorker, sample_messages.TO_WORKER),
    "worker to gateway": Channel(stream.decode_from_worker, stream.FromWorker, sample_messages.FROM_WORKER),
    "KV events": Channel(kv_events.decode_event, kv_events.KVEvent, sample_messages.EVENTS),
    "snapshot requests": Channel(kv_events.decode_request, kv_events.EventRequest, sample_messages.REQUESTS),
    "worker to worker": Channel(handoff.decode, handoff.HandoffMessage, sample_messages.PEER_MESSAGES),
}


def _type(field):
    """The type of a field. Its default does not matter: every field is sent."""
    return {key: value for key, value in field.items() if key != "default"}


def read(release):
    """The lines of that release's file."""
    return [json.loads(line) for line in (FOLDER / f"{release}.jsonl").read_text().splitlines()]


def main():
    path = FOLDER / f"{version('legato')}.jsonl"
    if path.exists():
        sys.exit(f"{path.name} exists already: the frames of a release do not change")
    FOLDER.mkdir(exist_ok=True)
    lines = [{"channel": name, **line} for name, channel in CHANNELS.items() for line in channel.lines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
