"""Quantities and durations as manifests spell them: `512Mi`, `500m`, `10m`, `100ms`."""

import re
from decimal import Decimal

GPU = "nvidia.com/gpu"  # the resource that is a GPU, unless the operator is given others
_UNITS = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{unit: Decimal(1000) ** power for power, unit in enumerate(("k", "M", "G", "T", "P"), 1)},
    **{unit: Decimal(1024) ** power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"), 1)},
}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi|)")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")

# How a CRD spells the three. Numbers are quantities too: `cpu: 1`.
QUANTITY_SCHEMA = {"x-kubernetes-int-or-string": True, "pattern": r"^\d+(\.\d+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"}
MEMORY_SCHEMA = {"x-kubernetes-int-or-string": True, "pattern": r"^0*[1-9]\d*(\.\d+)?(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"}
DURATION_SCHEMA = {"type": "string", "pattern": r"^(\d+(\.\d+)?(ms|s|m|h))+$"}


def quantity(text: str) -> Decimal:
    """The number that a Kubernetes quantity stands for. Raises ValueError for anything else."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no quantity; write for example 512Mi, 2Gi, 1 or 500m")
    return Decimal(match[1]) * _UNITS[match[2]]


def memory(text: str) -> int:
    """A quantity in whole bytes. Raises ValueError."""
    amount = quantity(text)
    if amount != int(amount) or amount <= 0:
        raise ValueError(f"{text!r} is no amount of memory; write for example 512Mi or 2Gi")
    return int(amount)


def duration(text: str) -> float:
    """Seconds of a duration such as 1h30m, 10m, 1s or 100ms. Raises ValueError."""
    parts = list(_DURATION.finditer(text))
    if not parts or "".join(part[0] for part in parts) != text:
        raise ValueError(f"{text!r} is no duration; write for example 10m, 1s or 100ms")
    return sum(float(part[1]) * _SECONDS[part[2]] for part in parts)


def memory_text(amount: int) -> str:
    """Bytes as a manifest spells them: 512Mi for 536870912."""
    for unit in ("Pi", "Ti", "Gi", "Mi", "Ki"):
        if amount % int(_UNITS[unit]) == 0:
            return f"{amount // int(_UNITS[unit])}{unit}"
    return str(amount)


def duration_text(value: float) -> str:
    """Seconds as a manifest spells them: 10m for 600, 100ms for 0.1."""
    for unit in ("h", "m", "s"):
        if value % _SECONDS[unit] == 0:
            return f"{value / _SECONDS[unit]:g}{unit}"
    return f"{value * 1000:g}ms"


def seconds(value: float) -> str:
    """Seconds as flags take them: to the millisecond, without needless digits or an exponent."""
    return f"{value:.3f}".rstrip("0").rstrip(".")
