"""Kubernetes' quantities, such as a number of cores: `2`, `500m`. How sizes and durations are read is in `protocol`."""

import re
from decimal import Decimal

from legato_protocol import durations, sizes, values

GPU = "nvidia.com/gpu"  # the resource that is a GPU, unless the operator is given others
_UNITS = {"m": Decimal("0.001"), **{unit: Decimal(size) for unit, size in sizes.UNITS.items()}}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi|)")

_SHORTEST, _LONGEST = durations.text(durations.SHORTEST), durations.text(durations.LONGEST)
_LARGEST = sizes.text(sizes.LARGEST)
_DURATION_RANGE = {
    "rule": f"duration(self) >= duration('{_SHORTEST}') && duration(self) <= duration('{_LONGEST}')",
    "message": f"{_SHORTEST} to {_LONGEST}",
}
_MEMORY_RANGE = {
    "rule": f"string(self) == '{sizes.AUTO}' || (quantity(string(self)).isGreaterThan(quantity('0')) && "
    f"quantity(string(self)).compareTo(quantity('{_LARGEST}')) <= 0)",
    "message": f"above 0, at most {_LARGEST}",
}

# How a CRD spells the three. Numbers are quantities too: `cpu: 1`.
QUANTITY_SCHEMA = {"x-kubernetes-int-or-string": True, "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"}
MEMORY_OR_AUTO_SCHEMA = {
    "x-kubernetes-int-or-string": True,
    "pattern": f"^{sizes.AUTO}$|{sizes.PATTERN}",
    "x-kubernetes-validations": [_MEMORY_RANGE],
}
DURATION_SCHEMA = {
    "type": "string",
    "pattern": durations.PATTERN,
    "x-kubernetes-validations": [_DURATION_RANGE],
}


def quantity(text: str) -> Decimal:
    """The number that a Kubernetes quantity stands for. Raises ValueError for anything else."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise values.invalid("quantity", text, "write 2, 500m or 512Mi")
    return Decimal(match[1]) * _UNITS[match[2]]
