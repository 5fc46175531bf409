"""Types of scalar fields of a manifest: sizes, durations, amounts, names."""

import contextlib
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from legato_operator.api import quantities
from legato_protocol.model_files.degrees import DEGREES
from legato_protocol.settings import durations, sizes, values

LONGEST_SERVICE_NAME = 40  # leaves room for -prefill-123


def _number_as_text(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _check_quantity(text: str) -> str:
    quantities.quantity(text)
    return text


def _check_network(text: str) -> str:
    values.network(text)
    return text


def _check_degree(value: int) -> int:
    if value not in DEGREES:
        raise values.invalid("degree", value, ", ".join(map(str, DEGREES)))
    return value


def _bytes_or_auto(value: object) -> int | None:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    with contextlib.suppress(ValueError):
        size = sizes.parse_or_auto(text)
        if size is None or size >= quantities.LEAST_MEMORY:
            return size
    raise values.invalid("size", text, f"write 512Mi, 1.5Gi or 1073741824; {quantities.MEMORY_RANGE}, or {sizes.AUTO}")


def _bytes(value: object) -> int:
    with contextlib.suppress(ValueError):
        if (size := _bytes_or_auto(value)) is not None:
            return size
    raise values.invalid("size", str(value), f"write 512Mi, 1.5Gi or 1073741824; {quantities.MEMORY_RANGE}")


Quantity = Annotated[
    str, BeforeValidator(_number_as_text), AfterValidator(_check_quantity), WithJsonSchema(quantities.QUANTITY_SCHEMA)
]
Duration = Annotated[float, BeforeValidator(durations.parse), WithJsonSchema(quantities.DURATION_SCHEMA)]  # seconds
BlockSize = Annotated[Literal["Auto", 8, 16, 32, 64, 128], WithJsonSchema(quantities.BLOCK_SIZE_SCHEMA)]
ChunkTokens = Annotated[
    int | Literal["Auto"], BeforeValidator(quantities.chunk_tokens), WithJsonSchema(quantities.CHUNK_TOKENS_SCHEMA)
]
MaxRunning = Annotated[  # None: Auto
    int | None,
    BeforeValidator(lambda value: quantities.whole_or_auto(value, *quantities.MAX_RUNNING, "number of sequences")),
    WithJsonSchema(quantities.whole_or_auto_schema(*quantities.MAX_RUNNING)),
]
MaxLength = Annotated[  # tokens; None: Auto
    int | None,
    BeforeValidator(lambda value: quantities.whole_or_auto(value, *quantities.MAX_LENGTH, "number of tokens")),
    WithJsonSchema(quantities.whole_or_auto_schema(*quantities.MAX_LENGTH)),
]
MemoryOrAuto = Annotated[  # bytes; None: Auto
    int | None, BeforeValidator(_bytes_or_auto), WithJsonSchema(quantities.MEMORY_OR_AUTO_SCHEMA)
]
Memory = Annotated[int, BeforeValidator(_bytes), WithJsonSchema(quantities.MEMORY_SCHEMA)]  # bytes
ServiceName = Annotated[str, Field(pattern=rf"^[a-z]([-a-z0-9]{{0,{LONGEST_SERVICE_NAME - 2}}}[a-z0-9])?$")]
Amounts = Annotated[dict[str, Quantity], Field(max_length=16)]  # by resource
ServedName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][-A-Za-z0-9._:/@+ ]*$")]
Tenant = Annotated[str, Field(min_length=1, max_length=512)]
Network = Annotated[str, AfterValidator(_check_network), WithJsonSchema(quantities.NETWORK_SCHEMA)]
Origin = Annotated[str, Field(pattern=values.ORIGIN, max_length=300)]
Count = Annotated[int, Field(ge=0, le=quantities.MOST_WORKERS)]
CountOrPercentage = Annotated[
    int | str,
    BeforeValidator(quantities.count_or_percentage),
    WithJsonSchema(quantities.COUNT_OR_PERCENTAGE_SCHEMA),
]


Degree = Annotated[  # of tensor parallelism
    int, AfterValidator(_check_degree), WithJsonSchema({"type": "integer", "enum": [*DEGREES]})
]
PodImage = Annotated[str, Field(max_length=500, pattern=quantities.IMAGE)]


Weight = Annotated[float, Field(ge=0, le=1000)]
