"""`legato tune` changes the table as a whole, or not at all."""

import os
import re
from types import SimpleNamespace

import pytest
import torch
from triton.runtime.errors import OutOfResources

from legato_cli.machine import tune
from legato_engine.kernels.gpu import configurations
from legato_engine.kernels.gpu.configurations import Configuration, Table
from legato_engine.kernels.gpu.tuning import timing
from legato_engine.kernels.gpu.tuning.device import TuningDevice
from legato_engine.kernels.gpu.tuning.search import Case, TuningTrial

PLACE = TuningDevice(torch.device("cpu"), "sm_90", 132)
FAST = Configuration({"WIDTH": 512}, warps=8)
VERSION = configurations.triton_minor()
BEFORE = configurations.FILE.read_text()
TABLE = Table.read(BEFORE)
PRESENT = TABLE.choose("silu_mul", {}, "sm_90", VERSION)
NO_SPACE = OSError(28, "No space left on device")


@pytest.fixture
def path(tmp_path):
    (tmp_path / "configurations.json").write_text(BEFORE)
    return tmp_path / "configurations.json"


@pytest.fixture
def run(path, monkeypatch):
    """Tunes a kernel that `failing` configurations raise for, and then others: its exit code, and the table."""
    taken = [1.0]  # seconds of a launch, which it leaves here
    monkeypatch.setattr(timing, "seconds", lambda launch: (launch(), taken[-1])[1])

    def tuned(*others, fast=0.5, failing=(), dry_run=False):
        def make(config):
            if config in failing:
                raise OutOfResources(102400, 101376, "shared memory")
            return TuningTrial(lambda: taken.append(fast if config == FAST else 1.0), lambda: torch.ones(2))

        code = tune.tune(TABLE, path, PLACE, [Case("silu_mul", {}, [FAST], make), *others], dry_run)
        return code, Table.read(path.read_text())

    return tuned


def _fail(monkeypatch, name, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(os, name, fail)


@pytest.fixture
def gpu(monkeypatch):
    found = SimpleNamespace(place=torch.device("cpu"), chip="sm_90", processors=132)
    monkeypatch.setattr("legato_engine.runner.backends.gpu", lambda name: found)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--table none", "No such file"),
        ("--table empty", "not a row of configurations"),
        ("--table configurations.json --kernel nonsense", "nonsense: not tuned; there are decode_attention"),
        ("--table configurations.json", ". cannot be written to: name a table with --table"),
    ],
)
def test_arguments_that_cannot_be_used_are_named_before_anything_is_timed(
    gpu, path, legato, monkeypatch, flags, message
):
    (path.parent / "empty").write_text("[{}]")
    monkeypatch.chdir(path.parent)
    monkeypatch.setattr(os, "access", lambda folder, mode: False)
    monkeypatch.setattr(tune, "tune", lambda *_: pytest.fail("timed"))
    code, _, err = legato("tune", *flags.split())
    assert code == 2
    assert message in err


def test_without_a_gpu_it_says_so(path, legato):
    code, _, err = legato("tune", "--table", path)
    assert (code, path.read_text()) == (2, BEFORE)
    assert "legato tune: device cuda was asked for, but torch" in err


def test_the_table_gets_a_row_for_this_chip(path, run, capsys):
    path.chmod(0o640)
    code, written = run()
    assert code == 0
    assert written.choose("silu_mul", {"width": 8}, "sm_90", VERSION) == FAST
    assert written.choose("silu_mul", {}, "sm_80", VERSION) == TABLE.choose("silu_mul", {}, "sm_80", VERSION)
    assert [row for row in written.rows if row.configuration != FAST] == list(TABLE.rows)
    assert path.stat().st_mode & 0o777 == 0o640
    said = capsys.readouterr().out
    assert "silu_mul: 1,000,000.0 µs → 500,000.0 µs with WIDTH 512, num_warps 8, num_stages 1" in said
    assert "1 of 1 rows for sm_90" in said


@pytest.mark.parametrize(
    ("failing", "chosen", "line"),
    [
        ([PRESENT], FAST, "→ 500,000.0 µs with WIDTH 512, num_warps 8, num_stages 1: out of resource: "),
        ([PRESENT, FAST], PRESENT, ", nor can any other (1 impossible): out of resource: "),
    ],
    ids=["replaced", "stays where nothing can run"],
)
def test_a_row_that_cannot_run(path, run, capsys, failing, chosen, line):
    code, written = run(failing=failing)
    assert (code, written.choose("silu_mul", {}, "sm_90", VERSION)) == (0, chosen)
    assert (path.read_text() == BEFORE) == (chosen == PRESENT)
    assert re.search(rf"silu_mul: cannot run ?{re.escape(line)}", capsys.readouterr().out)


@pytest.mark.parametrize(("fast", "dry_run"), [(0.5, True), (0.99, False)])
def test_a_dry_run_and_one_that_finds_nothing_write_nothing(run, monkeypatch, fast, dry_run):
    monkeypatch.setattr(tune, "write", lambda *_: pytest.fail("written"))
    assert run(fast=fast, dry_run=dry_run)[0] == 0


@pytest.mark.parametrize("failing", ["replace", "fsync"])
@pytest.mark.parametrize("error", [NO_SPACE, KeyboardInterrupt()])
def test_a_table_that_cannot_be_written_stays_as_it_was(path, monkeypatch, failing, error):
    _fail(monkeypatch, failing, error)
    with pytest.raises(type(error)):
        tune.write(path, "[]\n")
    assert path.read_text() == BEFORE
    assert list(path.parent.iterdir()) == [path]
