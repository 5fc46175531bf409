"""Decides what follows a failed attempt or migration. Pure policy; `driver` carries it out."""

from dataclasses import dataclass
from typing import Literal

from legato_gateway.errors import DeadlineExceeded, GatewayError, NotComputable, WorkerFailed
from legato_protocol.wire.stream import Failed

OnFailure = Literal["Retry", "Recompute", "Fail"]
OnWorkerFailure = Literal["Retry", "Fail"]

TRANSFER_CODES = frozenset({"transfer", "peer_lost"})
# Codes of attempts that could not sample: logits were not finite, or the grammar allowed no token. The decode worker of
# a pair only notices a missing hand-off.
FAULT_CODES = frozenset({"faulted", "transfer"})
# Codes of attempts that no worker had room for: nothing failed.
NO_ROOM_CODES = frozenset({"overloaded", "draining", "stale"})
PATIENT_CODES = NO_ROOM_CODES | {"peer_lost"}  # retried until the deadline


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Times in seconds. `max_failures` counts consecutive faults without a token between them.

    `most_faults` counts attempts of one request, on any worker, that could not sample a token: after as many, the
    request itself is the cause.
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
    """Dispatch it again after `delay`; with `recompute`, without a hand-off."""

    delay: float
    recompute: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """End it with this error."""

    error: GatewayError


def after_failure(failed: Failed, failures: int, faults: int, policy: RetryPolicy) -> Again | End:
    """Returns the answer to a sub-request's `failures`-th consecutive failure; its request has had `faults`."""
    if failed.code == "deadline":
        return End(DeadlineExceeded(f"its time ran out: {failed.message}", part=failed.part))
    if failed.code in FAULT_CODES and faults >= policy.most_faults:
        text = f"{failed.message}, after {faults} attempts that could not sample a token"
        return End(NotComputable(text, part=failed.part))
    if not failed.retry:
        return End(failure(failed))
    transfer = failed.code in TRANSFER_CODES
    if transfer and policy.on_transfer_failure == "Fail":
        return End(failure(failed))
    if failures > policy.max_failures and failed.code not in PATIENT_CODES:
        return End(failure(failed))
    return Again(delay(failures, policy), transfer and policy.on_transfer_failure == "Recompute")


def delay(failures: int, policy: RetryPolicy) -> float:
    """Returns the seconds before the next attempt: none after the first failure, then doubling."""
    if failures <= 1:
        return 0.0
    return min(policy.most_delay, policy.first_delay * 2.0 ** min(failures - 2, 30))


def migration_delay(failed: int, policy: RetryPolicy) -> float:
    """Returns the seconds before the next migration, doubling with each of the sequence's `failed` ones."""
    return min(policy.most_delay, policy.first_migration_delay * 2.0 ** min(failed - 1, 30))


def failure(failed: Failed) -> WorkerFailed:
    """Returns the client's error for a failed attempt that is not retried."""
    return WorkerFailed(f"{failed.part}: {failed.message} ({failed.code})", part=failed.part)
