"""What a worker can do, from a file: for workers that are paced instead of computing, and for the simulator.

A step takes a fixed time, and more for each sequence that decodes, each token of their context, each prompt token, and
each pair of a prompt token and one that it attends to: the coefficients that `scheduler.step_cost` fits to running
steps.
"""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from legato_engine.errors import UnusableProfile
from legato_engine.scheduler.batch import Batch
from legato_engine.scheduler.chunk_budget import pairs

_SUFFIX = ".json"
_SHIPPED = Path(__file__).parents[1] / "profiles"

Seconds = Annotated[float, Meta(ge=0)]


class StepTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Coefficients of a step's time."""

    per_step: Annotated[float, Meta(gt=0)]
    per_row: Seconds  # for each sequence that decodes
    per_context: Seconds  # for each token before these
    per_token: Seconds  # of prompts
    per_pair: Seconds  # of a prompt token and one that it attends to

    def seconds(self, rows: int, context: int, tokens: int, attended: float) -> float:
        """Of a step that decodes `rows` with `context` tokens before them in all, and computes prompt tokens, with
        so many pairs of one and what it attends to."""
        decoding = self.per_row * rows + self.per_context * context
        return self.per_step + decoding + self.per_token * tokens + self.per_pair * attended

    def of(self, batch: Batch) -> float:
        """Seconds of this step. A row of one token that draws decodes, as in what the scheduler measures."""
        rows, context, tokens, attended = 0, 0, 0, 0.0
        for row in batch.rows:
            if (count := len(row.tokens)) == 1 and row.draws:
                rows, context = rows + 1, context + row.start
            else:
                tokens, attended = tokens + count, attended + pairs(count, row.start)
        return self.seconds(rows, context, tokens, attended)


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """One kind of worker: a model on a machine."""

    source: str  # where the numbers come from: measured how and when, or published where
    step: StepTimes
    kv_tokens: Annotated[int, Meta(gt=0)]  # that the KV cache holds
    start_seconds: Seconds  # that a model takes to load, until the worker serves


def find(profile: str) -> Profile:
    """That of a file, or the shipped one of that name. Raises UnusableProfile."""
    if "/" in profile or profile.endswith(_SUFFIX):
        return read(Path(profile))
    if profile not in (names := shipped()):
        raise UnusableProfile(f"no such profile: {profile} (a JSON file, or one of {', '.join(names)})")
    return read(_SHIPPED / f"{profile}{_SUFFIX}")


def shipped() -> list[str]:
    """Names of the profiles in this package."""
    return sorted(path.stem for path in _SHIPPED.glob(f"*{_SUFFIX}"))


def read(path: Path) -> Profile:
    """The profile in a JSON file. Raises UnusableProfile."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Profile)
    except OSError as error:
        raise UnusableProfile(f"{path}: {error.strerror or error}") from None
    except msgspec.MsgspecError as error:
        raise UnusableProfile(f"{path}: {error}") from None
