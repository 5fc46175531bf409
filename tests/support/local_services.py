"""Services on this machine as tests need them: their manifests, and what a running `legato up` answers."""

from pathlib import Path
from typing import Any

import yaml
from recordings import ScriptedGateways

from legato_cli.local.operations import LocalOperations
from legato_cli.recording.reader import RoundReader
from legato_cli.services.events import RecentEvents
from legato_cli.services.log_lines import LogLines
from legato_operator.clock import SystemClock
from legato_operator.cluster import Cluster, Ref
from legato_operator.observing.observe import Gateways
from legato_protocol import names

DEMO = Ref(names.INFERENCE_SERVICE, "default", "demo")
BUILTIN = "smollm2-135m-instruct"
ONE_GPU = {"resources": {"limits": {"nvidia.com/gpu": 1}}}


def manifest(name: str = "demo", **spec: Any) -> dict[str, Any]:
    """An InferenceService of the built-in model, with these fields of its spec."""
    written = {"model": {"source": {"builtin": BUILTIN}}, **spec}
    head = {"apiVersion": names.API_VERSION, "kind": names.INFERENCE_SERVICE}
    return {**head, "metadata": {"name": name}, "spec": written}


def write(path: Path, name: str = "demo", **spec: Any) -> Path:
    """The manifest in a file."""
    path.write_text(yaml.safe_dump(manifest(name, **spec)))
    return path


def operations(store: Cluster, ref: Ref = DEMO, gateways: Gateways | None = None) -> LocalOperations:
    """The operations of a `legato up` whose gateways these are."""
    clock = SystemClock()
    rounds = RoundReader(store, ref, gateways or ScriptedGateways(), clock)
    return LocalOperations(store, ref, clock, rounds, RecentEvents(clock), LogLines())
