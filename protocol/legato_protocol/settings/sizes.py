"""Sizes of memory in flags and manifests, in Kubernetes' units: `512Mi`, `1.5Gi`, `1073741824`."""

import math
import re
from decimal import Decimal
from typing import Final

from legato_protocol.settings.values import invalid

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
    """Parses `512Mi` or `1.5Gi` into bytes, rounded up, above 0 and at most 1Pi. Raises ValueError."""
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    size = Decimal(match[1]) * UNITS[match[2]] if match else Decimal(0)
    if not 0 < size <= LARGEST:
        raise invalid("size", text, "write 512Mi, 1.5Gi or 1073741824; above 0, at most 1Pi")
    return math.ceil(size)


def parse_or_auto(text: object) -> int | None:
    """Parses a size, or `Auto` as None. Raises ValueError."""
    if text == AUTO:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{str(error)[:-1]}; or {AUTO})") from None


def text_or_auto(size: int | None) -> str:
    """Formats a size, or None as `Auto`, for `parse_or_auto`."""
    return AUTO if size is None else text(size)


def text(size: int) -> str:
    """Formats bytes for `parse`: 512Mi for 536870912."""
    unit = next((unit for unit in ("Pi", "Ti", "Gi", "Mi", "Ki") if size % UNITS[unit] == 0), "")
    return f"{size // UNITS[unit]}{unit}"
