"""The workers of one attempt of a sub-request."""

from dataclasses import dataclass

from legato_gateway.routing.choose import PrefillAt
from legato_gateway.routing.rebalancing import MigrationReason


@dataclass(frozen=True, slots=True)
class AttemptPlace:
    """One attempt on its workers. `epochs` are by worker name.

    `prefill` is empty where the decode worker prefills, for the reason `prefill_at`.
    """

    attempt: int
    prefill: str
    decode: str
    epochs: dict[str, str]
    prefill_at: PrefillAt = "separate"
    to_compute: int = 0  # tokens predicted to be left when the prefill starts
    new_revision: bool | None = None  # in a canary; None: it is not compared
    migrates: MigrationReason | None = None  # the reason, if it comes from another decode worker

    @property
    def workers(self) -> set[str]:
        return {self.decode, self.prefill} - {""}
