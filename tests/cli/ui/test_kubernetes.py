"""Gateways on Kubernetes are reached by `kubectl`, which never outlives the page."""

import asyncio
import sys

import psutil
import pytest

from legato_cli.ui import kubernetes, target
from legato_cli.ui.kubernetes import KubernetesSource
from legato_cli.ui.target import GatewayTarget, NoTarget, UITarget
from legato_operator.cluster import Ref

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]  # a hang is a failure
REF = Ref("InferenceService", "prod", "chat")
KUBECTL = f"""#!{sys.executable}
import sys, time
pod = sys.argv[-2]
if "broken" in pod:
    sys.exit("error: pods not found")
print(f"Forwarding from 127.0.0.1:{{4000 + int(pod[-1])}} -> {{sys.argv[-1][1:]}}", flush=True)
time.sleep(600)
"""


@pytest.fixture
def kubectl(tmp_path, monkeypatch):
    program = tmp_path / "kubectl"
    program.write_text(KUBECTL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


@pytest.fixture
def pods(monkeypatch):
    """The gateways that are ready; a test changes them."""
    found = ["gateway-0", "gateway-1"]

    async def read(_cluster, ref):
        assert ref == REF
        return UITarget(tuple(GatewayTarget(name, "10.0.0.1:8082") for name in found), "secret", {"name": "chat"})

    monkeypatch.setattr(kubernetes, "read", read)
    return found


@pytest.fixture
async def source():
    source = KubernetesSource(None, REF)
    yield source
    await source.close()
    assert not _children()


def _children():
    return [child for child in psutil.Process().children() if "port-forward" in child.cmdline()]


async def _names(source):
    return [gateway.name for gateway in (await source.find()).gateways]


async def test_each_gateway_gets_one_forward_and_none_is_left(kubectl, pods, source):
    first, again = await asyncio.gather(source.find(), source.find())
    assert [gateway.address for gateway in first.gateways] == ["127.0.0.1:4000", "127.0.0.1:4001"]
    assert again == first
    assert len(_children()) == 2
    assert all("pod/gateway" in " ".join(child.cmdline()) for child in _children())
    pods.remove("gateway-0")
    assert await _names(source) == ["gateway-1"]
    assert len(_children()) == 1


async def test_a_forward_that_ended_is_started_again(kubectl, pods, source):
    await source.find()
    (process, *_) = [forward._process for forward in source._forwards.values()]
    process.kill()
    await process.wait()
    assert await _names(source) == ["gateway-0", "gateway-1"]
    assert len(_children()) == 2


async def test_the_reason_that_kubectl_gives_is_passed_on(kubectl, pods, source):
    pods[:] = ["broken-0"]
    with pytest.raises(NoTarget, match="broken-0: error: pods not found"):
        await source.find()


async def test_a_gateway_that_cannot_be_reached_hides_no_other(kubectl, pods, source):
    pods[:] = ["broken-0", "gateway-1"]
    assert await _names(source) == ["gateway-1"]


async def test_without_kubectl_the_reason_is_given(pods, monkeypatch, tmp_path, source):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoTarget, match="kubectl cannot be started"):
        await source.find()


def test_a_target_travels_between_processes():
    known = UITarget((GatewayTarget("g", "127.0.0.1:1"),), "secret", {"name": "chat"})
    assert target.from_message(known.message()) == known
