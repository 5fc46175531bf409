"""How Triton's kernels are compiled for a shape and a chip: sizes of tiles, warps, stages. What is good where stands in
`configurations.json`; nothing is tuned while a worker serves.
"""

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ANY = "any"  # a chip or version of Triton
FILE = Path(__file__).with_name("configurations.json")


@dataclass(frozen=True, slots=True)
class Configuration:
    """`tiles` are the kernel's compile-time sizes, by name; `stages` how many tiles are loaded ahead."""

    tiles: Mapping[str, int] = field(default_factory=dict)
    warps: int = 4
    stages: int = 1

    @property
    def options(self) -> dict[str, int]:
        """What a launch takes beside its arguments."""
        return {**self.tiles, "num_warps": self.warps, "num_stages": self.stages}


@dataclass(frozen=True, slots=True)
class Row:
    """A configuration, and where it holds: shapes that have all of `shape`, a chip (`sm_90`), a Triton (`3.7`).

    A `head_dim` in `shape` is a power of two: the size that kernels pad heads to.
    """

    kernel: str
    shape: Mapping[str, int]
    chip: str
    triton: str
    configuration: Configuration

    def holds(self, kernel: str, shape: Mapping[str, int], chip: str, triton: str) -> bool:
        return (
            self.kernel == kernel
            and self.shape.items() <= shape.items()
            and self.chip in (ANY, chip)
            and self.triton in (ANY, triton)
        )

    @property
    def specificity(self) -> tuple[bool, int, bool]:
        """A chip says more than any shape: what its shared memory has no room for cannot run."""
        return self.chip != ANY, len(self.shape), self.triton != ANY

    @property
    def place(self) -> tuple[str, tuple[tuple[str, int], ...], str, str]:
        """Where it stands in the table, and which row it replaces."""
        return self.kernel, tuple(sorted(self.shape.items())), self.chip, self.triton

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> "Row":
        """Raises KeyError or TypeError where a name is missing or unknown."""
        rest = dict(given)
        kernel, shape, chip, triton = (rest.pop(name) for name in ("kernel", "shape", "chip", "triton"))
        return cls(kernel, shape, chip, triton, Configuration(**rest))

    def plain(self) -> dict[str, Any]:
        """As in the file."""
        chosen = self.configuration
        return {
            "kernel": self.kernel,
            "shape": dict(sorted(self.shape.items())),
            "chip": self.chip,
            "triton": self.triton,
            "tiles": dict(sorted(chosen.tiles.items())),
            "warps": chosen.warps,
            "stages": chosen.stages,
        }


@dataclass(frozen=True, slots=True)
class Table:
    """All rows, sorted by their place."""

    rows: tuple[Row, ...]

    @classmethod
    def read(cls, text: str) -> "Table":
        """Raises ValueError for a text that is none, has two rows for one place, or a row that never holds."""
        try:
            rows = [Row.parse(given) for given in json.loads(text)]
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a row of configurations: {error}") from error
        places = [row.place for row in rows]
        if twice := {place for place in places if places.count(place) > 1}:
            raise ValueError(f"two configurations for {', '.join(map(str, sorted(twice)))}")
        if never := [row.place for row in rows if row.shape != _padded(row.shape)]:
            raise ValueError(f"head_dim is not a power of two: {', '.join(map(str, never))}")
        return cls(tuple(sorted(rows, key=lambda row: row.place)))

    def text(self) -> str:
        """As the file holds it: one row a line, so that changes can be read."""
        return "[\n" + ",\n".join("  " + json.dumps(row.plain()) for row in self.rows) + "\n]\n"

    def replaced(self, rows: Iterable[Row]) -> "Table":
        """These rows instead of those that stand in their places."""
        by_place = {row.place: row for row in (*self.rows, *rows)}
        return Table(tuple(by_place[place] for place in sorted(by_place)))

    def choose(self, kernel: str, shape: Mapping[str, int], chip: str, triton: str) -> Configuration:
        """The most specific row that holds for the padded shape; of equals the first. Raises LookupError where none
        does."""
        padded = _padded(shape)
        holding = [row for row in self.rows if row.holds(kernel, padded, chip, triton)]
        if not holding:
            known = ", ".join(sorted({row.kernel for row in self.rows}))
            raise LookupError(f"no configuration of {kernel} for {dict(shape)} on {chip}; there are some of: {known}")
        return max(holding, key=lambda row: row.specificity).configuration


def choose(kernel: str, shape: Mapping[str, int], chip: str) -> Configuration:
    """What the table says for this kernel, shape and chip (`sm_90`), and the installed Triton.

    Names of a shape are those of the table: `head_dim` (the model's), `block_size` (tokens), `group` (query heads that
    share a KV head). Those it does not know do not matter, and a chip that has no rows gets those for any.
    """
    return shipped().choose(kernel, shape, chip, triton_minor())


def _padded(shape: Mapping[str, int]) -> Mapping[str, int]:
    """With the head size that tiles have: it is what registers and shared memory are needed for."""
    if "head_dim" not in shape:
        return shape
    return {**shape, "head_dim": 1 << (shape["head_dim"] - 1).bit_length()}


@functools.cache
def shipped() -> Table:
    """The table in the package."""
    return Table.read(FILE.read_text())


@functools.cache
def triton_minor() -> str:
    """The installed Triton's version as the table spells it: `3.7`."""
    import triton

    return ".".join(triton.__version__.split(".")[:2])


def chip_of(device: "torch.device | int" = 0) -> str:
    """The name of a CUDA device's chip, as the table spells it."""
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"
