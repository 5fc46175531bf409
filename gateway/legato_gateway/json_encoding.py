"""JSON encoding of the gateway's output."""

from collections.abc import Callable
from typing import Any

import msgspec

encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode
