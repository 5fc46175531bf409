"""Kubernetes quantities, such as a number of cores: `2`, `500m`. `legato_protocol` parses other values."""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from legato_protocol.settings import durations, sizes, values

DEVICE = "[a-z0-9][-a-z0-9.]*/[A-Za-z0-9][-A-Za-z0-9_.]*"  # a resource with a domain, as a pattern
GPU = "nvidia.com/gpu"  # the resource of GPUs, unless the operator is given others
# Accelerators' resource names after the domain: AMD, AWS, Google, Huawei, Intel, NVIDIA and others.
_ACCELERATOR = re.compile(
    "/([^/]*[^/a-z])?([vp]?gpu|[mntx]pu|gcu|mlu|dcu|gaudi|neuron(core|device)?|ascend|i915|xe|mig-[0-9]+g)s?(?![a-z])",
    re.IGNORECASE,
)
_UNITS = {"m": Decimal("0.001"), **{unit: Decimal(size) for unit, size in sizes.UNITS.items()}}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi|)")

MOST_WORKERS = 10_000  # of a pool
LEAST_CHUNK, LONGEST_CHUNK = 16, 1 << 20  # tokens
_PERCENTAGE = re.compile(r"(100|[1-9]?[0-9])%")

_SHORTEST, _LONGEST = durations.text(durations.SHORTEST), durations.text(durations.LONGEST)
LEAST_MEMORY = 1 << 20  # bytes: no model's KV cache is smaller
_LEAST, _LARGEST = sizes.text(LEAST_MEMORY), sizes.text(sizes.LARGEST)
MEMORY_RANGE = f"{_LEAST} to {_LARGEST}"
_DURATION_RANGE = {
    "rule": f"duration(self) >= duration('{_SHORTEST}') && duration(self) <= duration('{_LONGEST}')",
    "message": f"{_SHORTEST} to {_LONGEST}",
}
_IN_MEMORY_RANGE = (
    f"quantity(string(self)).compareTo(quantity('{_LEAST}')) >= 0 && "
    f"quantity(string(self)).compareTo(quantity('{_LARGEST}')) <= 0"
)
_MEMORY_RANGE = {
    "rule": f"string(self) == '{sizes.AUTO}' || ({_IN_MEMORY_RANGE})",
    "message": MEMORY_RANGE,
}

_BYTE = "(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])"
_IPV4 = rf"({_BYTE}\.){{3}}{_BYTE}(/(3[0-2]|[12]?[0-9]))?"
_IPV6 = r"[0-9a-fA-F:]*:[0-9a-fA-F:.]*(/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))?"

# An image's name, with optional registry, tag and digest.
_PART = "[a-z0-9]+(([.]|_|__|-+)[a-z0-9]+)*"
_REGISTRY = "[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?(:[0-9]+)?/"
IMAGE = f"^({_REGISTRY})?{_PART}(/{_PART})*(:[A-Za-z0-9_][-A-Za-z0-9_.]{{0,127}})?(@sha256:[0-9a-f]{{64}})?$"

# Schemas for the CRD. Numbers are quantities too: `cpu: 1`.
QUANTITY_SCHEMA = {
    "x-kubernetes-int-or-string": True,
    "maxLength": 40,
    "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$",
}
CHUNK_TOKENS_SCHEMA = {
    "x-kubernetes-int-or-string": True,
    "minimum": LEAST_CHUNK,
    "maximum": LONGEST_CHUNK,
    "maxLength": len(sizes.AUTO),
    "pattern": f"^{sizes.AUTO}$",
}
MAX_RUNNING = 1, 4096
MAX_LENGTH = 16, 1 << 24


def whole_or_auto_schema(least: int, most: int) -> dict[str, Any]:
    return {**CHUNK_TOKENS_SCHEMA, "minimum": least, "maximum": most}


BLOCK_SIZE_SCHEMA = {"x-kubernetes-int-or-string": True, "enum": ["Auto", 8, 16, 32, 64, 128]}
MEMORY_OR_AUTO_SCHEMA = {
    "x-kubernetes-int-or-string": True,
    "pattern": f"^{sizes.AUTO}$|{sizes.PATTERN}",
    "x-kubernetes-validations": [_MEMORY_RANGE],
}
MEMORY_SCHEMA = {
    "x-kubernetes-int-or-string": True,
    "pattern": sizes.PATTERN,
    "x-kubernetes-validations": [{**_MEMORY_RANGE, "rule": _IN_MEMORY_RANGE}],
}
DURATION_SCHEMA = {
    "type": "string",
    "pattern": durations.PATTERN,
    "x-kubernetes-validations": [_DURATION_RANGE],
}
COUNT_OR_PERCENTAGE_SCHEMA = {
    "x-kubernetes-int-or-string": True,
    "minimum": 0,
    "maximum": MOST_WORKERS,
    "maxLength": 4,
    "pattern": f"^{_PERCENTAGE.pattern}$",
}
NETWORK_SCHEMA = {"type": "string", "maxLength": 49, "pattern": f"^({_IPV4}|{_IPV6})$"}


def count_or_percentage(value: object) -> int | str:
    """Returns a number of workers, or a percentage such as `25%`. Raises ValueError for anything else."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_WORKERS:
        return value
    if isinstance(value, str) and _PERCENTAGE.fullmatch(value):
        return value
    raise values.invalid("count or percentage", value, f"0 to {MOST_WORKERS}, or 0% to 100%")


def chunk_tokens(value: object) -> object:
    """Returns a number of tokens, or `Auto`. Raises ValueError for anything else."""
    number = whole_or_auto(value, LEAST_CHUNK, LONGEST_CHUNK, "number of tokens")
    return sizes.AUTO if number is None else number


def whole_or_auto(value: object, least: int, most: int, what: str) -> int | None:
    """Returns a number within bounds, or None for `Auto`. Raises ValueError for anything else."""
    if value == sizes.AUTO:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    raise values.invalid(what, value, f"{least} to {most}, or {sizes.AUTO}")


def share(value: int | str, total: int, up: bool) -> int:
    """Returns a count, or the percentage of `total`, rounded up or down."""
    if isinstance(value, int):
        return value
    parts = total * int(value.removesuffix("%"))
    return -(-parts // 100) if up else parts // 100


def quantity(text: str) -> Decimal:
    """Returns the value of a Kubernetes quantity. Raises ValueError for anything else."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise values.invalid("quantity", text, "write 2, 500m or 512Mi")
    return Decimal(match[1]) * _UNITS[match[2]]


def accelerators(amounts: Mapping[str, str]) -> list[str]:
    """Returns the requested resources that are accelerators by their names."""
    return sorted(name for name in amounts if _ACCELERATOR.search(name) and quantity(amounts[name]))
