"""Errors of the operator.

OperatorError
├── ManifestError      the user's manifest; permanent until it is edited
└── ClusterError       the cluster refused a call
    ├── ObjectNotFound  the object does not exist
    ├── Conflict        another writer, another version or another object of that name; read it again and retry
    ├── Forbidden       the operator lacks permission, or nobody has it: a terminating namespace accepts no new objects
    ├── Gone            a watch fell behind; list again
    ├── Invalid         the object violates a rule of its kind; permanent until one of the two changes
    ├── Unavailable     the API server did not answer; retry later
    │   └── Throttled   the API server asks for a pause of `seconds`
    └── NotLeading      another replica of the operator holds the Lease; this one must not write
"""

from collections.abc import Sequence


class OperatorError(Exception):
    """Any error of this package."""


class ManifestError(OperatorError):
    """A manifest that cannot be accepted. `problems` holds (path of the field, message)."""

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{path}: {message}" if path else message for path, message in self.problems))


class ClusterError(OperatorError):
    """The cluster refused a call."""


class ObjectNotFound(ClusterError):
    """The object does not exist."""


class Conflict(ClusterError):
    """Another writer owns the field, or the object is another version or another one of the same name."""


class Forbidden(ClusterError):
    """This process lacks the permission."""


class Gone(ClusterError):
    """The events since that version are no longer kept."""


class Invalid(ClusterError):
    """The object, as it would be, breaks a rule of its kind."""


class Unavailable(ClusterError):
    """The cluster did not answer, or is overloaded."""


class Throttled(Unavailable):
    """The cluster is overloaded, and did not execute the call."""

    def __init__(self, message: str, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(message)


class NotLeading(ClusterError):
    """This replica does not hold the Lease, or not for certain."""
