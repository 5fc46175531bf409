"""`legato tune`: finds configurations of Triton's kernels for the GPU of this machine, and writes them to the table."""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from legato_cli.errors import CannotRun
from legato_protocol.settings import flags

if TYPE_CHECKING:
    from legato_engine.kernels.gpu.configurations import Table
    from legato_engine.kernels.gpu.tuning.device import TuningDevice
    from legato_engine.kernels.gpu.tuning.search import Case, Found
HELP = "find the fastest configurations of the kernels for this machine's GPU"
DESCRIPTION = (
    "Times the kernels with several configurations on the first GPU, in the shapes of common models, "
    "and writes the fastest ones to the table that workers read."
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    flags.repeated(parser, "--kernel", kind=flags.text("KERNEL"), help="tune only this kernel; all if not given")
    flags.option(parser, "--table", kind=flags.text("FILE"), help="table to change; the installed one if not given")
    parser.add_argument("--dry-run", action="store_true", help="only print what would be changed")


def run(args: argparse.Namespace) -> int:
    """Raises CannotRun without a GPU, for an unknown kernel, and for a table that cannot be changed."""
    from legato_engine.errors import NoDevice
    from legato_engine.kernels.gpu import configurations
    from legato_engine.kernels.gpu.tuning import cases
    from legato_engine.kernels.gpu.tuning.device import TuningDevice
    from legato_engine.runner import backends

    path = Path(args.table or configurations.FILE)
    try:
        table = configurations.Table.read(path.read_text())
        gpu = backends.gpu("cuda")
        assert gpu is not None
        place = TuningDevice(gpu.place, gpu.chip, gpu.processors)
        chosen = list(cases.all_of(place, args.kernel))
        if not args.dry_run and not os.access(path.parent, os.W_OK):
            raise PermissionError(f"{path.parent} cannot be written to: name a table with --table, or give --dry-run")
    except (NoDevice, ValueError, OSError) as error:
        raise CannotRun(str(error)) from None
    return tune(table, path, place, chosen, args.dry_run)


def tune(table: "Table", path: Path, place: "TuningDevice", chosen: "list[Case]", dry_run: bool) -> int:
    """Times `chosen`, prints the results and, unless it is a dry run, writes them to `path`. Returns the exit code.

    Results are also written if a later kernel raises or the user interrupts, because they took minutes of a GPU.
    """
    from tqdm import tqdm

    from legato_engine.kernels.gpu.configurations import triton_minor
    from legato_engine.kernels.gpu.tuning import timing
    from legato_engine.kernels.gpu.tuning.search import search

    version, results = triton_minor(), list["Found"]()
    try:
        for case in tqdm(chosen, disable=not sys.stderr.isatty(), leave=False):
            results.append(search(case, table.choose(case.kernel, case.shape, place.chip, version), timing.seconds))
            print(line(results[-1]), flush=True)
    finally:
        code = _change(table, path, place.chip, version, results, dry_run)
    return code


def _change(table: "Table", path: Path, chip: str, version: str, results: "list[Found]", dry_run: bool) -> int:
    """Writes the changed rows and returns the exit code."""
    from legato_engine.kernels.gpu.configurations import Table
    from legato_engine.kernels.gpu.tuning.search import rows

    changed = list(rows(results, chip, version))
    if changed and not dry_run:
        try:
            write(path, table.replaced(changed).text())
        except OSError as error:
            print(f"legato tune: {path} stays as it was: {error}; it should have these rows:", file=sys.stderr)
            print(Table(tuple(changed)).text())
            return 2
    outcome = "would be changed" if dry_run else f"of {path} were changed"
    print(f"{len(changed)} of {len(results)} rows for {chip} and Triton {version} {outcome}")
    return 0


def line(found: "Found") -> str:
    """Describes the result of one kernel in one shape."""
    left = [f"{len(some)} {why}" for some, why in ((found.wrong, "wrong"), (found.impossible, "impossible")) if some]
    note = (f" ({', '.join(left)})" if left else "") + (f": {found.failure}" if found.failure else "")
    before = "cannot run" if found.failure else _microseconds(found.seconds_before)
    if found.after == found.before:
        return f"{found.case}: {before}, {'nor can any other' if found.failure else 'stays'}{note}"
    sizes = ", ".join(f"{name} {value}" for name, value in found.after.options.items())
    return f"{found.case}: {before} → {_microseconds(found.seconds_after)} with {sizes}{note}"


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} µs"


def write(path: Path, text: str) -> None:
    """Replaces the file atomically: readers have the old table until it is complete, and after a failure."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            if path.exists():
                os.chmod(file.name, path.stat().st_mode & 0o777)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
