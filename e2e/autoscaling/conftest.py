"""Services of paced workers on GPUs that are only numbers, and the figures that tests of them have measured."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import nodes
import paced
import pytest
from helm import Release
from kube import Namespace, Object
from samples import Samples, violations
from service import Service

# A prompt of 150 tokens takes 1.3 s. 17 sequences decode within 90 % of the objective, on one worker. Steps are long
# beside the delays of a busy machine, which workers measure as a part of them: 0.3 s a row were seen.
STEP = {"perStep": 0.1, "perRow": 0.2, "perContext": 0, "perToken": 0.0065, "perPair": 0}
SCALING = {
    "mode": "Managed",
    "prefill": {"min": 1, "max": 4},
    "decode": {"min": 1, "max": 4},
    "gpuBudget": 6,
    "maxPrefillPerDecode": 3,
    "maxDecodePerPrefill": 3,
    "scaleDownStabilization": "5s",
}
Serve = Callable[..., Service]


@pytest.fixture(scope="module")
def serve(release: Release, namespace: Namespace) -> Serve:
    """Applies a service, with other `scaling` fields than `SCALING` has."""

    def apply(name: str, gateways: int = 1, step: Object = STEP, kv_tokens: int = 100_000, **scaling: Any) -> Service:
        text = paced.manifest(
            name,
            step=step,
            kv_tokens=kv_tokens,
            requests={nodes.GPU: 1},
            engine={"chunkTokens": 64},
            gateway={"replicas": gateways},
            routing={},
            slo={"ttft": "2s", "tpot": "4s"},
            scaling={**SCALING, **scaling},
        )
        namespace.apply(text)
        return Service(namespace, name)

    return apply


@pytest.fixture
def watch() -> Callable[[Service], Any]:
    """Samples of a service, as a context. No promise of its manifest may be broken in any of them."""
    return _watched


@contextmanager
def _watched(service: Service) -> Iterator[Samples]:
    spec: Object = service.object()["spec"]
    with Samples(service) as samples:
        samples.until(lambda sample: True, "there is a sample")
        yield samples
    assert not list(violations(samples.taken, spec))


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str, float | str], None]:
    """Notes a measured value, which is printed at the end, and written into JUnit's file."""

    def note(what: str, found: float | str) -> None:
        record_property(what, f"{found:.1f}" if isinstance(found, float) else found)

    return note
