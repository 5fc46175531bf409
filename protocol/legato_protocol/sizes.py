"""Sizes of memory as flags and manifests spell them, in Kubernetes' units: `512Mi`, `1.5Gi`, `1073741824`."""

import math
import re
from decimal import Decimal
from typing import Final

from legato_protocol.values import invalid

AUTO = "Auto"
LARGEST = 1 << 50  # bytes
PATTERN = r"^[0-9]+(\.[0-9]+)?(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"  # as a CRD's schema has it

UNITS: Final = {
    "": 1,
    **{unit: 1000**power for power, unit in enumerate(("k", "M", "G", "T", "P"), 1)},
    **{unit: 1024**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"), 1)},
}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi|)")


def parse(text: object) -> int:
    """Bytes in `512Mi` or `1.5Gi`, above 0 and at most 1Pi; part of a byte counts as one. Raises ValueError."""
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    size = Decimal(match[1]) * UNITS[match[2]] if match else Decimal(0)
    if not 0 < size <= LARGEST:
        raise invalid("size", text, "write 512Mi, 1.5Gi or 1073741824; above 0, at most 1Pi")
    return math.ceil(size)


def parse_or_auto(text: object) -> int | None:
    """As `parse`; None for `Auto`."""
    if text == AUTO:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{str(error)[:-1]}; or {AUTO})") from None


def text_or_auto(size: int | None) -> str:
    """As `parse_or_auto` reads it."""
    return AUTO if size is None else text(size)


def text(size: int) -> str:
    """Bytes as `parse` reads them: 512Mi for 536870912."""
    unit = next((unit for unit in ("Pi", "Ti", "Gi", "Mi", "Ki") if size % UNITS[unit] == 0), "")
    return f"{size // UNITS[unit]}{unit}"
