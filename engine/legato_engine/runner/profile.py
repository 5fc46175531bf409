"""A worker's speed and size from a file, for paced workers and for the simulator.

A step takes a fixed time, and more for each sequence that decodes, each token of its context, each prompt token, and
each pair of a prompt token and a token that it attends to: the coefficients that `scheduler.planning.step_cost` fits to
running steps.
"""

import math
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from legato_engine.errors import UnusableProfile
from legato_engine.scheduler.batch import Batch
from legato_engine.scheduler.planning.step_work import work_of
from legato_engine.scheduler.speculation.draft_cost import WORTH
from legato_protocol.model_files.degrees import DEGREES

_SUFFIX = ".json"
_SHIPPED = Path(__file__).parents[1] / "profiles"

ALL_REDUCES = 0.2  # assumed share of a step that all-reduces of its ranks add, for each doubling of their number

Seconds = Annotated[float, Meta(ge=0)]


class StepTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Coefficients of a step's time."""

    per_step: Annotated[float, Meta(gt=0)]
    per_row: Seconds  # for each sequence that decodes
    per_context: Seconds  # for each token of their context
    per_token: Seconds  # of prompts
    per_pair: Seconds  # of a prompt token and a token that it attends to

    def seconds(self, rows: int, context: int, tokens: int, attended: float) -> float:
        """The time of a step that decodes `rows` sequences with `context` tokens in total, and computes prompt
        `tokens` with `attended` pairs."""
        decoding = self.per_row * rows + self.per_context * context
        return self.per_step + decoding + self.per_token * tokens + self.per_pair * attended

    def each_token(self, rows: int, context: int, speculated: "Speculated") -> "StepTimes":
        """The times of decodes of `rows`, divided by the mean number of tokens that a sequence gets in a step.

        Steps have the number of drafts that minimizes these times, as `DraftCost` chooses it.
        """
        times, best = self, self.seconds(rows, context, 0, 0) / WORTH
        chances = [speculated.acceptance**place for place in range(1, 1 + speculated.drafts)]
        for each in range(1, 1 + len(chances)):
            drafts = min(rows * each, max(0, speculated.most_sampled - rows))
            gain = 1 + sum(chance * min(1.0, max(0.0, drafts / rows - i)) for i, chance in enumerate(chances))
            if (seconds := self.seconds(rows + drafts, context, 0, 0) / gain) < best:
                times, best = self._divided(gain, 1 + drafts / rows), seconds
        return times

    def _divided(self, gain: float, drafted: float) -> "StepTimes":
        per_row = self.per_row * drafted / gain
        return msgspec.structs.replace(
            self, per_step=self.per_step / gain, per_row=per_row, per_context=self.per_context / gain
        )

    def of(self, batch: Batch) -> float:
        """Seconds of this step, by its content as the scheduler measures it. Drafts cost as much as sequences."""
        work = work_of(batch)
        return self.seconds(work.rows + work.drafts, work.context, work.tokens, work.pairs)


class Speculated(NamedTuple):
    """Drafts of a sequence, the chance that one is right after right ones, and the most tokens that a step samples."""

    drafts: int
    acceptance: float
    most_sampled: int


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """One kind of worker: a model on a machine."""

    source: str  # of the numbers: how and when they were measured, or where they were published
    step: StepTimes
    kv_tokens: Annotated[int, Meta(gt=0)]  # that the KV cache holds, if all are of one group of layers
    start_seconds: Seconds  # until the model is loaded and the worker serves
    windows: tuple[Annotated[int, Meta(gt=0)], ...] = ()  # of the groups of layers after the first
    acceptance: Annotated[float, Meta(ge=0, le=1)] = 0  # chance that a draft is right, after right ones
    tensor: Annotated[int, Meta(ge=1, le=DEGREES[-1])] = 1  # ranks of this worker
    model: str = ""  # its name; empty if unknown

    def of_degree(self, ranks: int) -> "Profile":
        """The profile of a worker with this number of ranks, which is assumed unless it is the profile's own.

        Ranks divide compute, reads of memory, and KV. All-reduces add to each step. Memory that smaller parts of the
        weights leave for KV is not counted.
        """
        if ranks == self.tensor:
            return self
        own, other = (_share(each) for each in (self.tensor, ranks))
        step = StepTimes(*(seconds * other / own for seconds in msgspec.structs.astuple(self.step)))
        kv_tokens = max(1, self.kv_tokens * ranks // self.tensor)
        return msgspec.structs.replace(self, step=step, kv_tokens=kv_tokens, tensor=ranks)


def _share(ranks: int) -> float:
    """The time of a step with this number of ranks, as a share of its time with one."""
    return (1 + ALL_REDUCES * math.log2(ranks)) / ranks


def find(profile: str) -> Profile:
    """The profile in a file, or the shipped one of that name. Raises UnusableProfile."""
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
