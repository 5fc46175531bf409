"""A worker with KV in files, ended and started again: it finds its blocks, and never uses a wrong one."""

import os
import time

import pytest

from legato_engine.kvcache.disk_tier import REPORTED
from legato_protocol.wire.kv_events import DISK, Stored

layers = pytest.mark.parametrize("make_runner", ["plain", "windows"], indirect=True)


def keeping(make_runner, slots=60):
    return type("Keeping", (make_runner,), {"host_slots": slots})()


def until(world, condition):
    """Runs the workers until the thread of files has done its part."""
    ends = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends
        world.run(1)
        time.sleep(0.002)


def serve(world, worker, shift, id):
    prompt = [token + shift for token in world.prompt]
    world.generate(worker, prompt, id=id, turns=1)
    until(world, lambda: worker.finished(id))
    assert worker.tokens(id) == world.continuation(prompt, 12)
    return worker.items(id)[0].cached_tokens


def worked(world, make_runner, tmp_path):
    """Two prompts evicted the blocks of the first one, which are in files now."""
    blocks = 9 * (1 + len(make_runner.layout.windows))
    worker = world.worker("a", runner=keeping(make_runner), blocks=blocks, link=False, files=tmp_path)
    for number, shift in enumerate((0, 100, 200, 300)):
        serve(world, worker, shift, str(number))
    until(world, lambda: not worker.scheduler.pool.disk._writing)
    return worker, blocks


@layers
@pytest.mark.parametrize("damage", [False, True])
def test_a_restarted_worker_reads_its_blocks_and_computes_those_that_are_damaged(world, make_runner, tmp_path, damage):
    first, blocks = worked(world, make_runner, tmp_path)
    written = first.scheduler.pool.disk.counts()
    assert written.saved >= 5
    assert not written.errors
    os.close(first.core._disk._folder._lock)  # as at the end of its process
    world.workers.remove(first)
    if damage:
        for path in tmp_path.glob("*/*/?-*"):
            path.write_bytes(path.read_bytes()[:-1] + b"?")
    again = world.worker("b", runner=keeping(make_runner), blocks=blocks, link=False, files=tmp_path)
    stored = [event for event in again.scheduler.pool.take_events() if event.tier == DISK]
    assert all(isinstance(event, Stored) for event in stored)
    assert stored
    cached = serve(world, again, 0, "r")
    counts = again.scheduler.pool.disk.counts()
    assert (cached > 0, counts.restored > 0, counts.errors > 0) == (not damage, not damage, damage)
    assert ("checksum" in counts.problem) == damage
    world.run(3)
    totals = again.status.totals.tiers["disk"]
    assert (totals.restored, totals.errors) == (counts.restored, counts.errors)
    assert totals.problem == counts.problem
    world.run(int(REPORTED))
    serve(world, again, 0, "later")
    assert not again.scheduler.pool.disk.counts().problem
