"""`legato tune` changes the table as a whole, or not at all."""

import os

import pytest
import torch
from triton.runtime.errors import OutOfResources

from legato_cli import main, tune
from legato_engine.kernels import configurations
from legato_engine.kernels.configurations import Configuration, Table
from legato_engine.kernels.tuning import timing
from legato_engine.kernels.tuning.cases import Place
from legato_engine.kernels.tuning.search import Case, Trial

PLACE = Place(torch.device("cpu"), "sm_90", 132)
FAST = Configuration({"WIDTH": 512}, warps=8)


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "configurations.json"
    made.write_text(configurations.FILE.read_text())
    return made


@pytest.fixture(autouse=True)
def times(monkeypatch):
    """Seconds of a launch, which it leaves here."""
    taken = [1.0]
    monkeypatch.setattr(timing, "seconds", lambda launch: (launch(), taken[-1])[1])
    return taken


def case(times, fast=0.5, failing=()):
    """A kernel that `failing` configurations raise for."""

    def make(config):
        if config in failing:
            raise OutOfResources(102400, 101376, "shared memory")
        return Trial(lambda: times.append(fast if config == FAST else 1.0), lambda: torch.ones(2))

    return Case("silu_mul", {}, [FAST], make)


def test_without_a_gpu_it_says_so(path, capsys):
    before = path.read_bytes()
    assert main.main(["tune", "--table", str(path)]) == 2
    assert "legato tune: device cuda was asked for, but torch" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_a_table_that_is_none_is_named_before_anything_is_timed(tmp_path, capsys):
    (tmp_path / "table").write_text("[{}]")
    assert main.main(["tune", "--table", str(tmp_path / "table")]) == 2
    assert "not a row of configurations" in capsys.readouterr().err
    assert main.main(["tune", "--table", str(tmp_path / "none")]) == 2
    assert "No such file" in capsys.readouterr().err


@pytest.fixture
def gpu(monkeypatch):
    """One that cannot do anything."""

    class Gpu:
        place, chip, processors = torch.device("cpu"), "sm_90", 132

    monkeypatch.setattr("legato_engine.runner.backends.gpu", lambda name: Gpu())


def test_an_unknown_kernel_is_named_with_those_that_there_are(gpu, path, capsys):
    assert main.main(["tune", "--table", str(path), "--kernel", "nonsense"]) == 2
    assert "nonsense: not tuned; there are decode_attention" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_to_is_named_before_anything_is_timed(gpu, path, capsys, monkeypatch):
    monkeypatch.setattr(os, "access", lambda folder, mode: False)
    monkeypatch.setattr(tune, "tune", lambda *_: pytest.fail("timed"))
    assert main.main(["tune", "--table", str(path)]) == 2
    assert f"{path.parent} cannot be written to" in capsys.readouterr().err


def test_the_table_gets_a_row_for_this_chip(path, times, capsys):
    path.chmod(0o640)
    table = Table.read(path.read_text())
    assert tune.tune(table, path, PLACE, [case(times)], dry_run=False) == 0
    written, version = Table.read(path.read_text()), configurations.triton_minor()
    assert written.choose("silu_mul", {"width": 8}, "sm_90", version) == FAST
    assert written.choose("silu_mul", {}, "sm_80", version) == table.choose("silu_mul", {}, "sm_80", version)
    assert [row for row in written.rows if row.configuration != FAST] == list(table.rows)
    assert path.stat().st_mode & 0o777 == 0o640
    said = capsys.readouterr().out
    assert "silu_mul: 1,000,000.0 µs → 500,000.0 µs with WIDTH 512, num_warps 8, num_stages 1" in said
    assert "1 of 1 rows for sm_90" in said


def test_a_row_that_cannot_run_is_replaced(path, times, capsys):
    table = Table.read(path.read_text())
    present = table.choose("silu_mul", {}, "sm_90", configurations.triton_minor())
    assert tune.tune(table, path, PLACE, [case(times, failing=[present])], dry_run=False) == 0
    assert Table.read(path.read_text()).choose("silu_mul", {}, "sm_90", configurations.triton_minor()) == FAST
    said = capsys.readouterr().out
    assert "silu_mul: cannot run → 500,000.0 µs with WIDTH 512, num_warps 8, num_stages 1: out of resource: " in said


def test_a_row_stays_where_nothing_can_run(path, times, capsys):
    before, table = path.read_bytes(), Table.read(path.read_text())
    present = table.choose("silu_mul", {}, "sm_90", configurations.triton_minor())
    assert tune.tune(table, path, PLACE, [case(times, failing=[present, FAST])], dry_run=False) == 0
    assert path.read_bytes() == before
    assert "silu_mul: cannot run, nor can any other (1 impossible): out of resource: " in capsys.readouterr().out


@pytest.mark.parametrize("error", [KeyboardInterrupt(), torch.AcceleratorError("an illegal memory access")])
def test_what_was_found_is_written_where_a_later_kernel_fails(path, times, error):
    def fail(config):
        raise error

    table, failing = Table.read(path.read_text()), Case("sum_blocks", {}, [], fail)
    with pytest.raises(type(error)):
        tune.tune(table, path, PLACE, [case(times), failing], dry_run=False)
    version = configurations.triton_minor()
    assert Table.read(path.read_text()).choose("silu_mul", {}, "sm_90", version) == FAST


@pytest.mark.parametrize(("fast", "dry_run"), [(0.5, True), (0.99, False)])
def test_a_dry_run_and_one_that_finds_nothing_write_nothing(path, times, monkeypatch, fast, dry_run):
    monkeypatch.setattr(tune, "write", lambda *_: pytest.fail("written"))
    assert tune.tune(Table.read(path.read_text()), path, PLACE, [case(times, fast)], dry_run) == 0


def test_what_was_found_is_not_lost_where_it_cannot_be_written(path, times, monkeypatch, capsys):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    assert tune.tune(Table.read(path.read_text()), path, PLACE, [case(times)], dry_run=False) == 2
    said = capsys.readouterr()
    assert "stays as it was: [Errno 28] No space left" in said.err
    (row,) = Table.read(said.out[said.out.index("[\n") :]).rows
    assert row.configuration == FAST


@pytest.mark.parametrize("failing", ["replace", "fsync"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_table_that_cannot_be_written_stays_as_it_was(path, monkeypatch, failing, error):
    def fail(*_):
        raise error

    before = path.read_bytes()
    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(type(error)):
        tune.write(path, "[]\n")
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
