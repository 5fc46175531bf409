"""Places to run the kernels of these tests: a GPU, or the interpreter, which shows that the tests are right.

Neither this folder's modules nor what they import need more than torch, triton and numpy.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}


@dataclass(frozen=True)
class Place:
    """`dtypes` can be computed there; `small` says that a program takes milliseconds."""

    device: torch.device
    chip: str
    processors: int
    dtypes: tuple[torch.dtype, ...]
    small: bool

    def random(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(shape, device=self.device).to(dtype)

    def ints(self, values: Any) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def close(self, found: torch.Tensor, expected: torch.Tensor) -> None:
        tolerance = TOLERANCE[found.dtype]
        torch.testing.assert_close(found.cpu(), expected.cpu().to(found.dtype), rtol=tolerance, atol=tolerance)


def here() -> Place | None:
    """None without a GPU, where kernels are not interpreted either."""
    if os.environ.get("TRITON_INTERPRET") == "1":  # products of bfloat16 are wrong there
        return Place(torch.device("cpu"), "interpreter", 4, (torch.float32,), small=True)
    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    chip = f"sm_{found.major}{found.minor}"
    return Place(torch.device("cuda", 0), chip, found.multi_processor_count, (torch.bfloat16, torch.float16), False)


def over(always: dict[str, tuple[Any, ...]] | None = None, **choices: tuple[Any, ...]) -> Callable[..., Any]:
    """Marks a test to be called with every combination of these arguments, in addition to `place` and `dtype`. In the
    interpreter, it is called with the first of each, but with all that are given as `always`."""

    def mark(test: Callable[..., None]) -> Callable[..., None]:
        test.choices, test.always = choices, always or {}  # type: ignore[attr-defined]
        return test

    return mark


def combinations(test: Any, place: Place) -> Iterator[dict[str, Any]]:
    first = {name: values[:1] for name, values in test.choices.items()}
    choices = {"dtype": place.dtypes, **test.always, **(first if place.small else test.choices)}
    for values in itertools.product(*choices.values()):
        yield dict(zip(choices, values, strict=True))
