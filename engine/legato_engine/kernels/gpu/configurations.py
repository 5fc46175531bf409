"""Compile-time options of Triton's kernels for a shape and a chip: sizes of tiles, warps, stages. The table is
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
        """The options of a launch, in addition to its arguments."""
        return {**self.tiles, "num_warps": self.warps, "num_stages": self.stages}


@dataclass(frozen=True, slots=True)
class ConfigurationRow:
    """A configuration with its scope: shapes that have all of `shape`, a chip (`sm_90`), a Triton (`3.7`).

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
        """A sort key: a chip counts more than any shape, because its shared memory limits tiles."""
        return self.chip != ANY, len(self.shape), self.triton != ANY

    @property
    def place(self) -> tuple[str, tuple[tuple[str, int], ...], str, str]:
        """The key of the row in the table."""
        return self.kernel, tuple(sorted(self.shape.items())), self.chip, self.triton

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> "ConfigurationRow":
        """Raises KeyError or TypeError if a name is missing or unknown."""
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

    rows: tuple[ConfigurationRow, ...]

    @classmethod
    def read(cls, text: str) -> "Table":
        """Raises ValueError for text that is not a table, has two rows for one place, or a row that never holds."""
        try:
            rows = [ConfigurationRow.parse(given) for given in json.loads(text)]
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

    def replaced(self, rows: Iterable[ConfigurationRow]) -> "Table":
        """The table with these rows in place of others with the same keys."""
        by_place = {row.place: row for row in (*self.rows, *rows)}
        return Table(tuple(by_place[place] for place in sorted(by_place)))

    def choose(self, kernel: str, shape: Mapping[str, int], chip: str, triton: str) -> Configuration:
        """The most specific row that holds for the padded shape; of equals the first. Raises LookupError if there is
        no row."""
        padded = _padded(shape)
        holding = [row for row in self.rows if row.holds(kernel, padded, chip, triton)]
        if not holding:
            known = ", ".join(sorted({row.kernel for row in self.rows}))
            raise LookupError(f"no configuration of {kernel} for {dict(shape)} on {chip}; there are some of: {known}")
        return max(holding, key=lambda row: row.specificity).configuration


def choose(kernel: str, shape: Mapping[str, int], chip: str) -> Configuration:
    """The table's configuration for this kernel, shape and chip (`sm_90`), and the installed Triton.

    A shape has the names of the table: `head_dim` (the model's), `block_size` (tokens), `group` (query heads that share
    a KV head), `kv_bits`. Unknown names do not matter, and a chip without rows gets the rows for any chip.
    """
    return shipped().choose(kernel, shape, chip, triton_minor())


def _padded(shape: Mapping[str, int]) -> Mapping[str, int]:
    """The shape with the head size of tiles, which determines registers and shared memory."""
    if "head_dim" not in shape:
        return shape
    return {**shape, "head_dim": 1 << (shape["head_dim"] - 1).bit_length()}


@functools.cache
def shipped() -> Table:
    """The table in the package."""
    return Table.read(FILE.read_text())


@functools.cache
def triton_minor() -> str:
    """The installed Triton's version as the table has it: `3.7`."""
    import triton

    return ".".join(triton.__version__.split(".")[:2])


def chip_of(device: "torch.device | int" = 0) -> str:
    """The name of a CUDA device's chip, as the table has it."""
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"
