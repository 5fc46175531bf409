"""Services on this machine as tests need them: their manifests, and what a running `legato up` answers."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from legato_cli.local import admin
from legato_cli.local.operations import LocalOperations
from legato_cli.services.log_lines import LogLines
from legato_operator.clock import SystemClock
from legato_operator.cluster import Cluster, Ref, ref_of
from legato_operator.manifests import common
from legato_operator.observing.observe import Gateways
from legato_protocol import names
from legato_protocol.wire.canary import Canary
from legato_protocol.wire.demand import DemandReport

DEMO = Ref(names.INFERENCE_SERVICE, "default", "demo")
BUILTIN = "smollm2-135m-instruct"
ONE_GPU = {"resources": {"limits": {"nvidia.com/gpu": 1}}}


def manifest(name: str = "demo", **spec: Any) -> dict[str, Any]:
    """An InferenceService of the built-in model, with these fields of its spec."""
    written = {"model": {"source": {"builtin": BUILTIN}}, **spec}
    head = {"apiVersion": names.API_VERSION, "kind": names.INFERENCE_SERVICE}
    return {**head, "metadata": {"name": name}, "spec": written}


def write(path: Path, name: str = "demo", **spec: Any) -> Path:
    path.write_text(yaml.safe_dump(manifest(name, **spec)))
    return path


class ScriptedGateways:
    """Gateways that all give this report; None is silence."""

    def __init__(self, report: DemandReport | None = None) -> None:
        self.report_given = report
        self.asked: list[str] = []

    async def report(self, address: str, tokens: Sequence[str], tls: object = None) -> DemandReport | None:
        self.asked.append(address)
        return self.report_given

    async def set_canary(self, address: str, tokens: Sequence[str], canary: Canary | None, tls: object = None) -> None:
        return


def operations(store: Cluster, ref: Ref = DEMO, gateways: Gateways | None = None) -> LocalOperations:
    """The operations of a `legato up` whose gateways these are."""
    return LocalOperations(store, ref, SystemClock(), gateways or ScriptedGateways(), LogLines())


async def store_pod(store: Cluster, owner: Ref, name: str, role: str, app: str, ready: bool = True) -> None:
    """Adds a pod of a stored service to the store: one that serves, if it is `ready`."""
    labels = {names.LABEL_SERVICE: owner.name, names.LABEL_ROLE: role, names.LABEL_APP: app}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": owner.namespace, "labels": {**labels, names.LABEL_POD_REVISION: "r"}},
        "spec": {"containers": [{"name": role}]},
    }
    await store.apply(common.owned(pod, await store.get(owner)), "test")
    condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": "2027-01-15T08:00:15Z"}
    status = {"podIP": "127.0.0.1", "ports": {"control": 4321}, "conditions": [condition]}
    await store.patch_status(ref_of(pod), status)


async def answered(legato: Callable[..., Any], answer: admin.Answer, *command: object) -> Any:
    """A command that asks the running service `demo`, which answers so; once it has ended."""
    async with admin.listening(DEMO.name, answer):
        return await asyncio.to_thread(legato, *command)
