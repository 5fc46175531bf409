"""Durations in flags, manifests and headers: `90s`, `1m30s`, `500ms`."""

import math
import re
from typing import Final

from legato_protocol.settings.values import invalid

SHORTEST, LONGEST = 0.001, 168 * 3600.0  # seconds
PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"  # as a CRD's schema has it

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_MILLISECONDS: Final = {"h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_WHOLE = re.compile(PATTERN.removesuffix("$"))
_BARE = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def parse(text: object) -> float:
    """Parses `90s`, `1m30s` or `500ms` into seconds, from 1ms to 168h. Raises ValueError, also without a unit."""
    seconds = _sum(text) if isinstance(text, str) else None
    if seconds is None or not SHORTEST <= seconds <= LONGEST:
        raise invalid("duration", text, "write 90s, 1m30s or 500ms; 1ms to 168h")
    return seconds


def parse_header(text: str) -> float:
    """Parses a duration or a bare number of seconds, as headers may have it. Raises ValueError."""
    seconds = float(text) if _BARE.fullmatch(text) else _sum(text)
    if seconds is None or not SHORTEST <= seconds <= LONGEST:
        raise invalid("duration", text, "write 90, 90s, 1m30s or 500ms; 1ms to 168h")
    return seconds


def _sum(text: str) -> float | None:
    if not _WHOLE.fullmatch(text):
        return None
    return math.fsum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))


def text(seconds: float) -> str:
    """Formats seconds for `parse`, to the millisecond, in one unit: `10m` for 600, `90s` for 90, `100ms` for 0.1."""
    amount = round(seconds * 1000)
    unit, size = next((unit, size) for unit, size in _MILLISECONDS.items() if amount % size == 0)
    return f"{amount // size}{unit}"
