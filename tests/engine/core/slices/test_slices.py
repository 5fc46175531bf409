"""Workers on shared cores, in virtual time, and processes that are killed."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from math import inf
from random import Random

import pytest
from readiness import wait_readable

from legato_engine.core.slices.policy import SliceClaim
from legato_engine.core.slices.slices import CHECK, LONGEST_REST, PATIENCE, SWEEP, OwnCores, SharedCores
from legato_engine.core.slices.table import MOST, TableFull

CORES = 2
DECODING = SliceClaim(0.09, 0.1)
CLAIMS = (SliceClaim(), DECODING, SliceClaim(0.09, 0.1, 0.0))


class Cores:
    """Workers with a table, and the time that they share."""

    def __init__(self, folder):
        self.folder, self.now, self.workers = folder, 10.0, []
        self.nap = lambda: None  # happens while a worker sleeps

    def worker(self, threads=CORES):
        made = SharedCores(self.folder, threads, CORES, lambda: self.now, self.sleep)
        self.workers.append(made)
        return made

    def sleep(self, seconds):
        self.now += seconds
        self.nap()


@pytest.fixture
def cores(tmp_path):
    made = Cores(tmp_path / "slices")
    yield made
    for worker in made.workers:
        worker.close()


def begin(worker, claim=None):
    return worker.begin(lambda: claim or SliceClaim())


def test_a_worker_waits_for_the_step_of_another_and_is_woken(cores):
    first, second = cores.worker(), cores.worker()
    assert begin(first) == inf
    assert begin(second) is None
    assert not wait_readable([second.wakeup], 0)
    cores.now += 1
    first.end(inf)
    assert wait_readable([second.wakeup], 0)
    second.clear_wakeup()
    assert not wait_readable([second.wakeup], 0)
    assert begin(second) == inf
    assert (first.waited, second.waited, second.timer) == (0, 1, inf)


def test_a_worker_keeps_its_slice_until_another_one_waits(cores):
    first, second = cores.worker(), cores.worker()
    assert begin(first) == inf
    first.end(inf)
    assert begin(second) is None
    cores.now += 0.001
    assert begin(first) is None
    assert begin(second) == inf


def test_a_worker_without_work_keeps_no_other_waiting(cores):
    first, second = cores.worker(), cores.worker()
    begin(first)
    first.end(inf)
    assert begin(second) is None
    first.withdraw()
    assert begin(second) == inf
    second.withdraw()
    assert begin(first) == inf


def test_a_step_with_tokens_ends_before_those_of_others_are_due(cores):
    first, second = cores.worker(), cores.worker()
    begin(first)
    assert begin(second, DECODING) is None
    cores.now += 0.01
    first.end(slack=0.05)
    cores.now += 0.005
    assert begin(second, SliceClaim(10.2, 10.3)) == pytest.approx(0.045)


def test_tokens_preempt_prompts_after_a_pause_and_once(cores):
    prompts, decoding = cores.worker(), cores.worker()
    begin(prompts)
    for _ in range(3):
        claim = SliceClaim(cores.now + 0.09, cores.now + 0.1, cores.now + 0.02)
        assert begin(decoding, claim) is None
        assert 0 < decoding.timer <= 0.0201
        cores.now += 0.021
        assert begin(decoding, claim) is not None
        cores.now += 0.01
        decoding.end(slack=0.09)
    prompts.end(inf)
    assert begin(decoding, claim) is not None


@pytest.mark.parametrize(("step", "rest"), [(0.03, 0.015), (1.0, LONGEST_REST)], ids=["a share", "at most"])
def test_prompts_go_on_between_tokens_of_two_workers(cores, step, rest):
    prompts, first, second = [cores.worker() for _ in range(3)]
    begin(prompts)
    begin(first, CLAIMS[2])
    assert begin(second, CLAIMS[2]) is None
    cores.now += step
    first.end(slack=0.09)
    for wait, begins in ((0, False), (rest - 0.0001, False), (0.0002, True)):
        cores.now += wait
        assert (begin(second, CLAIMS[2]) is not None) == begins
        assert begins or second.timer == pytest.approx(min(rest - wait, CHECK))


def test_several_prompts_are_preempted_once_tokens_are_due(cores):
    prompts, decoding = cores.worker(), cores.worker()
    begin(prompts, SliceClaim(prompts=2))
    claim = SliceClaim(cores.now + 0.04, cores.now + 0.05, cores.now + 0.02)
    for wait, begins in ((0.02, False), (0.0199, False), (0.0002, True)):
        assert begin(decoding, claim) is None
        assert decoding.timer <= wait + 0.0001
        cores.now += wait
        assert (begin(decoding, claim) is not None) == begins


def test_prompts_stop_between_layers_until_the_step_with_tokens_ends(cores):
    prompts, decoding = cores.worker(), cores.worker()
    began = cores.now
    begin(prompts)
    prompts.give_way()
    begin(decoding, CLAIMS[2])
    decoding.give_way()
    cores.nap = lambda: decoding.end(0.09) if cores.now >= began + 0.01 else None
    prompts.give_way()
    assert cores.now == pytest.approx(began + 0.01, abs=0.001)
    prompts.give_way()
    assert cores.now == pytest.approx(began + 0.01, abs=0.001)


def test_prompts_go_on_if_the_worker_with_tokens_does_not(cores):
    prompts, decoding = cores.worker(), cores.worker()
    began = cores.now
    begin(prompts)
    begin(decoding, CLAIMS[2])
    prompts.expect(100.0)
    prompts.give_way()
    assert cores.now == pytest.approx(began + PATIENCE, abs=2 * CHECK)


def test_workers_that_share_no_cores_never_wait(cores):
    first, second = cores.worker(threads=1), cores.worker(threads=1)
    assert [begin(worker) for worker in (first, second)] == [inf, inf]
    third = cores.worker(threads=5)  # counts as two: there are no more cores
    assert first.shared
    assert begin(third) == inf
    assert begin(first) is None
    third.close()
    cores.workers.remove(third)
    assert not first.shared
    assert begin(first) == inf


def test_a_worker_on_cores_of_its_own_never_waits():
    own = OwnCores()
    own.clear_wakeup()
    own.give_way()
    assert (begin(own), own.wakeup, own.timer, own.stretch) == (inf, None, inf, 1)


def test_steps_take_longer_by_the_wait_for_their_slices(cores):
    first, second = cores.worker(), cores.worker()
    for _ in range(200):
        begin(first)
        begin(second)
        cores.now += 0.3
        first.end(inf)
        begin(first)
        begin(second)
        cores.now += 0.1
        second.end(inf)
    assert second.stretch == pytest.approx(4, rel=0.01)
    assert first.stretch == pytest.approx(4 / 3, rel=0.01)
    second.close()
    cores.workers.remove(second)
    assert first.stretch == 1


def test_a_slice_that_never_ends_is_passed_over(cores):
    stuck, other = cores.worker(), cores.worker()
    begin(stuck)
    stuck.expect(1.0)  # others wait for four times this
    assert begin(other) is None
    for wait, begins in ((PATIENCE, False), (1.9, False), (0.2, True)):
        cores.now += wait
        assert (begin(other) is not None) == begins
    stuck.end(inf)  # it ends after all
    assert begin(stuck) is None
    other.end(inf)
    cores.now += PATIENCE + 0.1  # it got a slice, and did not notice
    assert begin(other) is None
    cores.now += CHECK
    assert begin(other) is not None
    assert begin(stuck) is None
    other.end(inf)
    assert begin(stuck) is not None


def test_another_worker_may_take_the_entry_of_one_that_has_ended(cores):
    cores.worker().close()
    cores.workers.clear()
    assert cores.worker().wakeup.number == 0
    for _ in range(MOST - 1):
        cores.worker()
    with pytest.raises(TableFull, match=f"{MOST} workers"):
        cores.worker()


@dataclass
class Load:
    """A worker of the simulation: seconds of its steps, and between its tokens; when its steps ended."""

    slices: SharedCores
    length: float
    slack: float = inf
    pause: float = inf
    ends: list = field(default_factory=lambda: [0.0])
    left: float = 0.0  # seconds of the running step

    def claim(self):
        due = self.ends[-1] + self.slack
        return SliceClaim(due, due + 0.01, self.ends[-1] + self.pause)


def simulate(cores, loads, seconds):
    """Runs steps in virtual time: prompts stand still while tokens are computed."""
    until = cores.now + seconds
    while cores.now < until:
        for load in loads:
            if not load.left and load.slices.begin(load.claim) is not None:
                load.left = load.length
        running = [load for load in loads if load.left]
        tokens = [load for load in running if load.slack < inf]
        assert max(len(tokens), len(running) - len(tokens)) <= 1, "two steps at the same time"
        cores.now += 0.001
        for load in tokens or running:
            load.left = max(0.0, load.left - 0.001)
            if load.left < 1e-9:
                load.left = 0.0
                load.slices.end(load.slack)
                load.ends.append(cores.now)


def gaps(load):
    return [after - before for before, after in zip(load.ends[3:], load.ends[4:], strict=False)]


@pytest.mark.parametrize("others", [1, 2, 3])
def test_tokens_come_regularly_during_long_prompts_which_get_the_pauses(cores, others):
    decoding = Load(cores.worker(), 0.01, slack=0.09, pause=0.02)
    prompts = [Load(cores.worker(), 0.4) for _ in range(others)]
    simulate(cores, [decoding, *prompts], 10)
    assert max(gaps(decoding)) <= 0.035  # a step, its pause and the end of a step
    assert sum(len(load.ends) for load in prompts) > 10 / 0.4 * 0.6


@pytest.mark.parametrize(("decoders", "others"), [(2, 2), (2, 1), (3, 1)])
def test_overloaded_workers_all_get_on(cores, decoders, others):
    decoding = [Load(cores.worker(), 0.15, slack=0.0, pause=0.075) for _ in range(decoders)]
    prompts = [Load(cores.worker(), 0.2) for _ in range(others)]
    simulate(cores, [*decoding, *prompts], 40)
    assert min(len(load.ends) for load in (*decoding, *prompts)) >= 20
    assert sum(len(load.ends) for load in prompts) * 0.2 >= 40 * 0.2


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_calls_gives_cores_to_no_more_threads(cores, seed):
    random = Random(seed)
    threads = {cores.worker(count): count for count in random.choices((1, 2), k=4)}
    running, claims = {}, {}
    for _ in range(400):
        worker, cores.now = random.choice([*threads]), cores.now + random.random() / 50
        if worker in running:
            del running[worker]
            worker.end(random.choice((inf, 0.05)))
        elif random.random() < 0.2:
            worker.withdraw()
            claims.pop(worker, None)
        elif begin(worker, claims.setdefault(worker, random.choice(CLAIMS))) is not None:
            running[worker] = claims.pop(worker).due < inf
        for decodes in (False, True):
            assert sum(threads[worker] for worker in running if running[worker] is decodes) <= CORES
    for worker in running:
        worker.end(inf)
    for worker in threads:  # a slice for each once the others need none
        for other in threads:
            other.withdraw()
        assert begin(worker) is not None


CLAIM = f"""
import sys, time
from pathlib import Path
from legato_engine.core.slices.policy import SliceClaim
from legato_engine.core.slices.slices import SharedCores
slices = SharedCores(Path(sys.argv[1]), {CORES}, {CORES}, time.monotonic)
print("waits" if slices.begin(SliceClaim) is None else "holds", flush=True)
time.sleep(600)
"""


@pytest.fixture
def claim(cores):
    """Starts a process that claims a slice of the cores of a first worker."""
    cores.worker()
    with subprocess.Popen([sys.executable, "-c", CLAIM, str(cores.folder)], stdout=subprocess.PIPE) as process:
        yield lambda: (process, process.stdout.readline())
        process.kill()


@pytest.mark.parametrize(("fault", "wait"), [(signal.SIGKILL, CHECK), (signal.SIGSTOP, 60 + PATIENCE)])
def test_workers_go_on_without_one_that_was_killed_or_stopped_in_its_slice(cores, claim, fault, wait):
    process, state = claim()
    assert state == b"holds\n"
    (worker,), cores.now = cores.workers, time.monotonic()
    assert begin(worker) is None
    process.send_signal(fault)
    if fault is signal.SIGKILL:
        process.wait()
    cores.now += wait
    assert begin(worker) is not None


def kill(cores, worker):
    for descriptor in (worker.wakeup._fifo, worker.wakeup._file):
        os.close(descriptor)  # as when its process ends
    cores.workers.remove(worker)


@pytest.mark.parametrize("call", [begin, SharedCores.withdraw], ids=["computes", "idles"])
def test_a_worker_that_was_killed_while_it_idled_shares_the_cores_no_longer(cores, call):
    worker, killed = cores.worker(), cores.worker()
    call(worker)
    kill(cores, killed)
    for wait, shared in ((0.9 * SWEEP, True), (0.2 * SWEEP, False)):
        cores.now += wait
        call(worker)
        assert worker.shared is shared


def test_no_slice_goes_to_a_worker_that_was_killed_while_it_waited(cores):
    worker, killed = cores.worker(), cores.worker()
    begin(worker)
    assert begin(killed) is None
    kill(cores, killed)
    worker.end(inf)
    cores.now += 0.001
    assert begin(worker) is not None


def test_workers_compute_without_slices_while_a_stopped_one_holds_the_lock(cores):
    stopped, worker = cores.worker(), cores.worker()
    begin(stopped)
    with stopped.wakeup.locked():
        for wait, begins in ((0, False), (PATIENCE / 2, False), (PATIENCE, True)):
            cores.now += wait
            assert (begin(worker) is not None) == begins
        worker.end(inf)
        assert begin(worker) is not None
        worker.withdraw()
        assert begin(worker) is not None
        worker.end(inf)
    assert begin(worker) is None
