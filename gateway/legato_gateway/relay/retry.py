"""What follows a failed attempt or migration: pure policy. `driver` does it."""

from dataclasses import dataclass
from typing import Literal

from legato_gateway.errors import DeadlineExceeded, GatewayError, NotComputable, WorkerFailed
from legato_protocol.stream import Failed

OnFailure = Literal["Retry", "Recompute", "Fail"]
OnWorkerFailure = Literal["Retry", "Fail"]

TRANSFER_CODES = frozenset({"transfer", "peer_lost"})
# How an attempt ends that cannot sample: its logits are not finite, or its grammar allows nothing. In a pair, the
# decode worker only learns that there is no hand-off.
FAULT_CODES = frozenset({"faulted", "transfer"})
# Codes of attempts for which a worker had no room: nothing broke.
NO_ROOM_CODES = frozenset({"overloaded", "draining", "stale"})
PATIENT_CODES = NO_ROOM_CODES | {"peer_lost"}  # may repeat until the deadline


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Times in seconds. `max_failures` counts faults in a row without a token between them.

    `most_faults` counts attempts of one request that could not sample a token, on whatever workers: so many mean that
    it is the request's own doing.
    """

    on_transfer_failure: OnFailure = "Retry"
    on_worker_failure: OnWorkerFailure = "Retry"
    max_failures: int = 8
    first_delay: float = 0.02
    most_delay: float = 1.0
    first_migration_delay: float = 0.1
    max_migrations: int = 5
    poison_deaths: int = 2
    most_faults: int = 2


@dataclass(frozen=True, slots=True)
class Again:
    """Dispatch it once more after `delay`; `recompute` without a hand-off."""

    delay: float
    recompute: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """Tell the client."""

    error: GatewayError


def after_failure(failed: Failed, failures: int, faults: int, policy: RetryPolicy) -> Again | End:
    """The answer to the `failures`-th failure in a row of a sub-request; its request has had `faults` of its own."""
    if failed.code == "deadline":
        return End(DeadlineExceeded(f"its time ran out: {failed.message}", part=failed.part))
    if failed.code in FAULT_CODES and faults >= policy.most_faults:
        told = f"{failed.message}, after {faults} attempts that could not sample a token"
        return End(NotComputable(told, part=failed.part))
    if not failed.retry:
        return End(failure(failed))
    transfer = failed.code in TRANSFER_CODES
    if transfer and policy.on_transfer_failure == "Fail":
        return End(failure(failed))
    if failures > policy.max_failures and failed.code not in PATIENT_CODES:
        return End(failure(failed))
    return Again(delay(failures, policy), transfer and policy.on_transfer_failure == "Recompute")


def delay(failures: int, policy: RetryPolicy) -> float:
    """The first failure costs no time: another worker may be free. Then pauses double."""
    if failures <= 1:
        return 0.0
    return min(policy.most_delay, policy.first_delay * 2.0 ** min(failures - 2, 30))


def migration_delay(failed: int, policy: RetryPolicy) -> float:
    """Seconds until the next try after `failed` migrations of a sequence have failed: they double, too."""
    return min(policy.most_delay, policy.first_migration_delay * 2.0 ** min(failed - 1, 30))


def failure(failed: Failed) -> WorkerFailed:
    """Returns the client's error for a failed attempt that is not repeated."""
    return WorkerFailed(f"{failed.part}: {failed.message} ({failed.code})", part=failed.part)
