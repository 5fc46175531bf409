"""A service of a tiny random model, whose decode workers are two processes that compute one half of each layer."""

import base64
import json
from pathlib import Path

import tiny_llama
import tokenizer_files
from kube import Namespace, Object
from service import Service

_VOLUME = "model"  # replaces the operator's volume of this name, a folder of the node
# Kills all ranks but the first, and prints their process ids.
_KILL = """
import contextlib, os, pathlib, signal
for process in pathlib.Path("/proc").glob("[0-9]*"):
    with contextlib.suppress(OSError):  # it has ended
        if b"legato_engine.runner.ranks" in (process / "cmdline").read_bytes().split(bytes(1)):
            os.kill(int(process.name), signal.SIGKILL)
            print(process.name)
"""
_RESTARTS = """
from urllib.request import urlopen
lines = urlopen("http://127.0.0.1:8081/metrics").read().decode().splitlines()
print(next(line.split()[-1] for line in lines if line.startswith("legato_worker_core_restarts")))
"""


def apply(namespace: Namespace, name: str, folder: Path) -> Service:
    """Creates the service and its model, for which `folder` is empty."""
    tokenizer = tokenizer_files.train()
    tokenizer_files.write_folder(folder, tokenizer)
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 128}
    lengths = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 8192}
    tiny_llama.write(folder, **sizes, **lengths, num_hidden_layers=1)
    files = {file.name: base64.b64encode(file.read_bytes()).decode() for file in folder.iterdir()}
    model = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-model"}, "binaryData": files}
    namespace.kubectl("create", "--filename", "-", stdin=json.dumps(model))  # too large for what `apply` remembers
    spec = {"metadata": {"name": name}, "spec": _spec(f"{name}-model")}
    namespace.apply(json.dumps({"apiVersion": "serving.legato.dev/v1alpha1", "kind": "InferenceService", **spec}))
    return Service(namespace, name)


def _spec(model: str) -> Object:
    pod = {"template": {"spec": {"volumes": [{"name": _VOLUME, "configMap": {"name": model}}]}}}
    worker = {**pod, "resources": {"requests": {"cpu": "10m", "memory": "300Mi"}}}
    one = {"min": 1, "max": 1}
    return {
        "model": {"source": {"path": "/tiny"}},
        "engine": {"dtype": "Float32", "kvCacheMemory": "16Mi"},
        "prefill": worker,
        "decode": {**worker, "parallelism": {"tensor": 2}},
        "gateway": {**pod, "resources": {"requests": {"cpu": "20m", "memory": "150Mi"}}},
        "routing": {"localPrefillBelowTokens": 0},
        "scaling": {"mode": "External", "prefill": one, "decode": one},
    }


def kill_ranks(service: Service, pod: str) -> int:
    """Kills a worker's ranks, except for the first one. Returns their number."""
    return len(_run(service, pod, _KILL).split())


def core_restarts(service: Service, pod: str) -> int:
    """Returns how often a worker has replaced its compute process, by its metric."""
    return int(float(_run(service, pod, _RESTARTS)))


def _run(service: Service, pod: str, script: str) -> str:
    return service.namespace.kubectl("exec", pod, "--container=worker", "--", "python3", "-c", script)
