"""The request for a trace of a worker's next steps, sent to its control port."""

from typing import Annotated, Final

import msgspec

TRACE_PATH: Final = "/profile"
MOST_STEPS: Final = 1000  # a trace of more is too large for viewers
LONGEST_WAIT: Final = 600.0  # seconds


class StepTraceRequest(msgspec.Struct, frozen=True):
    """Asks for a trace of `steps` steps, which must have been computed within `timeout` seconds."""

    steps: Annotated[int, msgspec.Meta(ge=1, le=MOST_STEPS)]
    timeout: Annotated[float, msgspec.Meta(gt=0, le=LONGEST_WAIT)] = 60.0
