"""The errors that clients get, and their HTTP status.

    GatewayError
    ├── BadRequest               400  permanent: the request itself is wrong
    │   ├── ContextLengthExceeded 400
    │   ├── Unsupported          400  a feature that this server does not have
    │   │   └── ThreadUnsupported 400 a thread; Anthropic's SDK continues without it
    │   ├── NotComputable        400  its logits are not finite, whatever the worker
    │   ├── InvalidAPIKey        401
    │   ├── PriorityNotAllowed   403
    │   ├── NotFound             404  no such path, method (405) or model
    │   ├── BodyTooLarge         413
    │   ├── UnsupportedMediaType 415
    │   └── HeadersTooLarge      431
    ├── Refused                       temporary: not admitted, nothing was started
    │   ├── QuotaExceeded        429
    │   └── Overloaded           503  queue full, deadline out of reach, no worker can take it
    ├── DeadlineExceeded         504  its time ran out; `part` says where
    │   └── LateBody             504  before its body arrived
    ├── WorkerFailed             502  a worker failed and no other could take over; `part` says which
    │   └── SuspectedPoison      500  it was running at two worker deaths
    ├── SlowClient               408  the client read too slowly and the policy is to end it
    ├── LateRequest              408  its head or body was sent too slowly
    └── InternalFault            500  a fault in the gateway's code

Every error is written in OpenAI's format: `{"error": {"message", "type", "param", "code"}}`.
"""

from typing import ClassVar

import msgspec

from legato_protocol import names
from legato_protocol.wire.stream import Part


class GatewayError(Exception):
    """Base of all errors. `param` names the field at fault, `part` the part of the system."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: str | None = None
    permanent: ClassVar[bool] = False
    again: ClassVar[bool] = True  # False: clients that retry by themselves are asked not to

    def __init__(self, message: str, *, param: str | None = None, part: Part = "gateway") -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.part = part

    @property
    def http_status(self) -> int:
        """The status of its response."""
        return self.status

    @property
    def headers(self) -> dict[str, str]:
        """Headers of its response in addition to the body's."""
        return {} if self.again else {"x-should-retry": "false"}


class BadRequest(GatewayError):
    status = 400
    type = "invalid_request_error"
    permanent = True


class ContextLengthExceeded(BadRequest):
    """Prompt and answer do not fit into the model's context."""

    code = "context_length_exceeded"


class Unsupported(BadRequest):
    """Asks for a feature that this server does not have."""

    code = "unsupported_value"


class ThreadUnsupported(Unsupported):
    """The request asks for a thread. On this error code, Anthropic's SDK continues without one."""

    code = "thread_unsupported_request"


class NotComputable(BadRequest):
    """Its logits were not finite on several attempts: the request is the cause, and no other worker helps."""

    code = "not_computable"
    again = False


class InvalidAPIKey(BadRequest):
    """A key is required, and this request has no known one."""

    status = 401
    code = "invalid_api_key"

    @property
    def headers(self) -> dict[str, str]:
        return {**super().headers, "www-authenticate": "Bearer"}


class PriorityNotAllowed(BadRequest):
    """The priority exceeds the limit of the client's API key."""

    status = 403
    code = "priority_not_allowed"


class NotFound(BadRequest):
    """No such path or model."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 404) -> None:
        super().__init__(message, param=param)
        self.code = code
        self._status = status

    @property
    def http_status(self) -> int:
        return self._status


class BodyTooLarge(BadRequest):
    status = 413
    code = "request_too_large"


class UnsupportedMediaType(BadRequest):
    status = 415
    code = "unsupported_media_type"


class HeadersTooLarge(BadRequest):
    status = 431
    code = "headers_too_large"


class Refused(GatewayError):
    """Not admitted. `retry_after` is in seconds. `reason` is the drop reason: a constant in `admission.ticket`,
    `serving.bodies.budget` (bodies), `http.connections.limits` (connections) or `main` (stopping)."""

    status = 503
    code = "overloaded"

    def __init__(self, message: str, *, reason: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        seconds = max(1, min(3600, round(self.retry_after + 0.5)))
        return {"retry-after": str(seconds), names.HEADER_DROP_REASON: self.reason}


class QuotaExceeded(Refused):
    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class Overloaded(Refused):
    """Queue full, deadline out of reach, no worker that could take it, or a gateway that is full or stops."""


class DeadlineExceeded(GatewayError):
    """The client's time is over. Its library must not repeat the request and take as long again."""

    status = 504
    type = "timeout_error"
    code = "deadline_exceeded"
    again = False


class LateBody(DeadlineExceeded):
    """The body is late. Its rest is not waited for."""

    @property
    def headers(self) -> dict[str, str]:
        return {**super().headers, "connection": "close"}


class WorkerFailed(GatewayError):
    status = 502
    code = "worker_failed"


class SuspectedPoison(WorkerFailed):
    """It ran on two workers that died. A third worker is not risked, not even by a retry."""

    status = 500
    code = "suspected_poison"
    again = False


class SlowClient(GatewayError):
    """The client read too slowly."""

    status = 408
    code = "slow_client"


class LateRequest(GatewayError):
    """The client sent its request too slowly. The rest is not waited for."""

    status = 408
    type = "invalid_request_error"
    code = "request_timeout"

    @property
    def headers(self) -> dict[str, str]:
        return {**super().headers, "connection": "close"}


class InternalFault(GatewayError):
    """A fault in the gateway's code; the log has details."""

    code = "internal_error"


def body(error: GatewayError) -> bytes:
    """Returns the JSON of `error` in OpenAI's format. Errors of the server also name the part that failed."""
    shown = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return msgspec.json.encode({"error": shown if error.permanent else shown | {"part": error.part}})
