"""Winning configurations, and correct results of the candidates that are timed."""

from math import inf

import pytest
import torch
from triton.errors import TritonError

from legato_engine.kernels.gpu.configurations import Configuration, Table, choose
from legato_engine.kernels.gpu.tuning import cases
from legato_engine.kernels.gpu.tuning.device import Sizes, TuningDevice
from legato_engine.kernels.gpu.tuning.search import Case, TuningTrial, rows, search

PRESENT, OTHER, THIRD = (Configuration({"TILE": size}) for size in (16, 32, 64))
SMALL = Sizes(
    head_dims=(16,), groups=(2,), block_sizes=(16,), kv_heads=2, rows=3, context=70, prompt=40, tokens=20, hidden=48,
    inner=72, words=100, blocks=5, code_rows=(16,), code_bits=(4,),
    experts=(5, 2), expert_hidden=40, expert_inner=24, expert_rows=(16,), dtype=torch.float32,
)  # fmt: skip
PLACE = TuningDevice(torch.device("cpu"), "interpreter", 2, SMALL)


class Kernel:
    """Takes `times` by size of its tile, and makes `results`, or what `wrong` says for that size."""

    def __init__(self, times, wrong=None, results=(1.0, 2.0)):
        self.times, self.wrong, self.results = times, wrong or {}, torch.tensor(results)
        self.launched = None

    def make(self, config):
        size = config.tiles["TILE"]
        if isinstance(self.wrong.get(size), Exception):
            raise self.wrong[size]

        def launch():
            self.launched = size

        return TuningTrial(launch, lambda: self.wrong.get(size, self.results))

    def seconds(self, launch):
        launch()
        return self.times[self.launched]

    def search(self, present=PRESENT):
        return search(Case("k", {"head_dim": 8}, [PRESENT, OTHER, THIRD], self.make), present, self.seconds)


@pytest.mark.parametrize(
    ("times", "best"),
    [
        ((10.0, 9.0, 8.0), THIRD),
        ((10.0, 8.0, 9.0), OTHER),
        ((10.0, 10.0, 10.0), PRESENT),
        ((10.0, 9.8, 11.0), PRESENT),  # measurements differ by that much
        ((10.0, 9.6, 11.0), OTHER),
    ],
)
def test_the_fastest_wins_if_it_saves_something(times, best):
    kernel = Kernel(dict(zip((16, 32, 64), times, strict=True)))
    found = kernel.search()
    assert (found.before, found.after) == (PRESENT, best)
    assert (found.seconds_before, found.seconds_after) == (10.0, kernel.times[best.tiles["TILE"]])


PASS_FAILED = RuntimeError("PassManager::run failed")
FAILURES = TritonError("does not compile"), ValueError("unsupported"), torch.OutOfMemoryError(), PASS_FAILED


@pytest.mark.parametrize("error", FAILURES)
def test_what_cannot_run_does_not_win_and_anything_that_runs_is_faster(error):
    found = Kernel({16: 10.0, 32: 1.0, 64: 5.0}, {32: error}).search()
    assert (found.after, found.impossible, found.wrong) == (THIRD, [OTHER], [])
    found = Kernel({32: 9.0, 64: 8.9}, {16: error}).search()  # the table's cannot run
    assert (found.before, found.seconds_before, found.failure) == (PRESENT, inf, str(error) or "OutOfMemoryError")
    assert (found.after, found.seconds_after, found.wrong, found.impossible) == (THIRD, 8.9, [], [])


@pytest.mark.parametrize(
    ("right", "wrong"),
    [((1.0, 2.0), (1.0, 2.5)), ((1.0, 2.0), (1.0, float("nan"))), ((1 << 40, 0), (1 << 40, 1))],  # whole numbers: equal
)
def test_what_computes_something_else_does_not_win(right, wrong):
    found = Kernel({16: 10.0, 32: 1.0, 64: 5.0}, {32: torch.tensor(wrong)}, right).search()
    assert (found.after, found.impossible, found.wrong) == (THIRD, [], [OTHER])


def test_where_the_table_s_cannot_run_the_first_that_can_says_what_is_right():
    found = Kernel({32: 9.0, 64: 1.0}, {16: TritonError("no"), 64: torch.tensor((1.0, 2.5))}).search()
    assert (found.after, found.wrong) == (OTHER, [THIRD])


def test_a_device_that_has_failed_ends_the_search():
    with pytest.raises(torch.AcceleratorError):
        Kernel({16: 10.0}, {32: torch.AcceleratorError("an illegal memory access was encountered")}).search()


def test_rows_are_for_this_chip_and_triton_alone():
    better, same = Kernel({16: 10.0, 32: 9.0, 64: 8.0}).search(), Kernel({16: 1.0, 32: 1.0, 64: 1.0}).search()
    (row,) = rows([better, same], "sm_90", "3.7")
    assert (row.kernel, row.shape, row.chip, row.triton) == ("k", {"head_dim": 8}, "sm_90", "3.7")
    assert row.configuration == THIRD
    table = Table.read(Table(()).replaced([row]).text())
    assert table.choose("k", {"head_dim": 8, "group": 4}, "sm_90", "3.7") == THIRD
    with pytest.raises(LookupError):
        table.choose("k", {"head_dim": 8}, "sm_100", "3.7")


@pytest.mark.parametrize("kernel", cases.KERNELS)
def test_candidates_compute_what_the_table_computes(kernel):
    """The first and the last of them, in the interpreter."""
    (case,) = cases.all_of(PLACE, [kernel])
    assert len(case.candidates) > 6
    assert len(set(map(str, case.candidates))) == len(case.candidates)
    trial = case.make(case.candidates[0])
    trial.launch()
    assert trial.results().count_nonzero() > 0
    few = Case(case.kernel, case.shape, [case.candidates[0], case.candidates[-1]], case.make)
    launches = []

    def seconds(launch):
        launch()
        launches.append(launch)
        return 1.0 / len(launches)

    found = search(few, choose(kernel, case.shape, "interpreter"), seconds)
    assert (found.wrong, found.impossible) == ([], [])
    assert len(launches) == 3
    assert found.after == few.candidates[-1]


def test_all_shapes_of_common_models_are_tuned_and_other_kernels_are_refused():
    place = TuningDevice(torch.device("cpu"), "sm_90", 132)
    shapes = [str(case) for case in cases.all_of(place, ["prefill_attention"])]
    assert "prefill_attention, head_dim 128, block_size 64, group 4, kv_bits 16" in shapes
    assert len(shapes) == 27
    with pytest.raises(ValueError, match="nonsense: not tuned; there are decode_attention, "):
        list(cases.all_of(PLACE, ["nonsense"]))
