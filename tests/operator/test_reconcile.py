"""The whole loop on the local cluster: what is applied is what runs, through faults and the end."""

import json
import os
import signal
from pathlib import Path

import psutil


async def test_service_becomes_ready_and_its_end_leaves_nothing(f, build):
    """Two workers and a gateway, which ends first; the token is a Secret; conditions say so."""
    await f.apply(build())
    await f.wait(f.is_ready)
    assert set(await f.pods()) == {"demo-prefill-0", "demo-decode-0", "demo-gateway-0"}
    assert len((await f.cluster.store.list("Secret")).items) == 1

    settled = {"Progressing": "False", "Ready": "True", "KVTransportReady": "True"}
    settled |= {f"{pool}Ready": "True" for pool in ("Prefill", "Decode", "Gateway")}
    await f.wait(lambda: _statuses(f), settled)
    assert (await f.service())["status"]["observedGeneration"] == 1
    since = (await f.cluster.store.list("Pod")).version
    await f.delete("InferenceService")
    gone = []
    async for event in f.cluster.store.watch("Pod", since):
        if event.type == "DELETED":
            gone.append(event.object["metadata"]["name"])
        if len(gone) == 3:
            break
    assert gone[0] == "demo-gateway-0"
    for kind in ("InferenceService", "WorkerPool", "ControllerRevision", "Secret"):
        await f.wait(lambda kind=kind: f.has_none(kind))


async def test_killed_worker_comes_back_and_the_workers_file_follows(f, build):
    await f.apply(build())
    await f.wait(f.is_ready)
    first = _listed(await _workers_file(f))
    assert set(first) == {"demo-decode-0", "demo-prefill-0"}
    os.kill(f.starts("demo-decode-0")[0], signal.SIGKILL)

    async def back():
        listed = _listed(await _workers_file(f))
        return set(listed) == set(first) and listed["demo-decode-0"] != first["demo-decode-0"]

    await f.wait(back)
    await f.wait(lambda: f.has("decode", "demo-decode-0"))
    assert len(f.starts("demo-decode-0")) == 2


async def _workers_file(f):
    (gateway,) = (await f.pods("gateway")).values()
    pid = gateway["status"]["pid"]
    arguments = psutil.Process(pid).cmdline()
    return arguments[arguments.index("--workers-file") + 1]


def _listed(path):
    return {entry["worker"]: entry["address"] for entry in json.loads(Path(path).read_text())}


async def _statuses(f):
    return {kind: condition["status"] for kind, condition in (await f.conditions()).items()}
