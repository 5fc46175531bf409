"""Finds the fastest configuration of a kernel. Pure: the caller launches and measures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import torch

from legato_engine.kernels.gpu.configurations import Configuration, ConfigurationRow
from legato_engine.kernels.gpu.errors import TritonError

GAIN = 0.03  # share of the time that another configuration must save: measurements differ by as much


@dataclass(frozen=True, slots=True)
class TuningTrial:
    """A kernel with its own memory: `launch` starts it, `results` returns the results of the last launch."""

    launch: Callable[[], None]
    results: Callable[[], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel in one shape of the table's. `make` gives a trial, with the same inputs for every configuration."""

    kernel: str
    shape: Mapping[str, int]
    candidates: Sequence[Configuration]
    make: Callable[[Configuration], TuningTrial]

    def __str__(self) -> str:
        return ", ".join([self.kernel, *(f"{name} {value}" for name, value in self.shape.items())])


@dataclass(frozen=True, slots=True)
class Found:
    """The fastest configuration of a case, and seconds of a launch with it and with the one that the table has.

    `failure` is the reason why the table's cannot run, or ""; its time is then infinite. `wrong` are candidates with
    other results than the table's, `impossible` candidates that do not compile or need more than the device has."""

    case: Case
    before: Configuration
    after: Configuration
    seconds_before: float
    seconds_after: float
    wrong: Sequence[Configuration] = ()
    impossible: Sequence[Configuration] = ()
    failure: str = ""

    def row(self, chip: str, triton: str) -> ConfigurationRow | None:
        """The new row for the table; None if its present one is the best."""
        return (
            None
            if self.after == self.before
            else ConfigurationRow(self.case.kernel, self.case.shape, chip, triton, self.after)
        )


def search(case: Case, present: Configuration, seconds: Callable[[Callable[[], None]], float]) -> Found:
    """Tries all candidates. `seconds` measures a launch.

    If the `present` one cannot run, candidates are compared with the first that can. Raises torch.AcceleratorError if
    the device has failed, because nothing runs on it in this process after that.
    """
    best, least, before, failure = present, inf, inf, ""
    wrong, impossible, expected = list[Configuration](), list[Configuration](), None
    for candidate in (present, *(each for each in case.candidates if each != present)):
        try:
            trial = case.make(candidate)
            trial.launch()
            results = trial.results().clone()
            if expected is not None and not _same(results, expected):
                wrong.append(candidate)
                continue
            taken = seconds(trial.launch)
        except torch.AcceleratorError:
            raise
        except (TritonError, ValueError, RuntimeError) as error:  # a pass of the compiler that fails is a RuntimeError
            if candidate == present:
                failure = str(error) or type(error).__name__
            else:
                impossible.append(candidate)
            continue
        if expected is None:
            expected = results
        if candidate == present:
            least = before = taken
        elif taken < least and taken < (1 - GAIN) * before:
            best, least = candidate, taken
    return Found(case, present, best, before, least, wrong, impossible, failure)


def _same(results: torch.Tensor, expected: torch.Tensor) -> bool:
    """True if results are equal except for the order of sums, which depends on the size of tiles."""
    if not expected.is_floating_point():
        return torch.equal(results, expected)
    return torch.allclose(results.float(), expected.float(), rtol=2e-2, atol=2e-2)


def rows(found: Sequence[Found], chip: str, triton: str) -> Iterator[ConfigurationRow]:
    """The rows to replace in the table."""
    for each in found:
        if (row := each.row(chip, triton)) is not None:
            yield row
