"""`legato ui` as it is called, and what a running `legato up` tells it."""

import asyncio

import pytest
from recordings import operations

from legato_cli import admin, main, up
from legato_cli.local import serving
from legato_cli.ui import local
from legato_cli.ui.target import GatewayTarget
from legato_operator.cluster import Ref, ref_of
from legato_operator.local.store import Store
from legato_operator.manifests import common, secret
from legato_protocol import names

NOW = "2026-01-01T00:00:00Z"


@pytest.fixture(autouse=True)
def runtime(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def test_without_a_running_service_it_says_how_to_start_one(capsys):
    assert main.main(["ui"]) == 1
    assert capsys.readouterr().err == "legato ui: no service is running (start one with `legato up`)\n"


def test_a_service_on_kubernetes_needs_its_name(capsys):
    assert main.main(["ui", "--namespace", "prod"]) == 1
    assert "--service is required" in capsys.readouterr().err


def _pod(service, name, ready=True, role=common.GATEWAY, app=names.APP_GATEWAY):
    labels = {names.LABEL_SERVICE: service.metadata.name, names.LABEL_ROLE: role, names.LABEL_APP: app}
    condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": NOW}
    """And its status."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": service.metadata.namespace, "labels": labels},
        "spec": {"containers": [{"name": "gateway"}]},
    }, {"podIP": "127.0.0.1", "ports": {"control": 4321}, "conditions": [condition]}


def test_a_running_service_tells_its_ready_gateways_its_token_and_what_was_decided():
    async def test():
        store, manifest = Store(lambda: NOW), serving.read_manifest(up.QUICKSTART)
        service = manifest.service
        ref = Ref(names.INFERENCE_SERVICE, service.metadata.namespace, service.metadata.name)
        scaling = {"pools": {}, "records": []}
        await store.apply(manifest.written, "test")
        await store.patch_status(ref, {"scaling": scaling})
        await store.apply(secret.manifest(service, secret.ServiceToken("the-token")), "test")
        for pod, status in (
            _pod(service, "gateway-b"),
            _pod(service, "gateway-a", ready=False),
            _pod(service, "decode-0", role="decode", app=names.APP_WORKER),
        ):
            await store.apply(common.owned(pod, await store.get(ref)), "test")
            await store.patch_status(ref_of(pod), status)
        async with admin.listening(ref.name, operations(store, ref).answer):
            found = await local.LocalSource(None).find()
        assert found.gateways == (GatewayTarget("gateway-b", "127.0.0.1:4321"),)
        assert found.token == "the-token"
        shown = {"name": ref.name, "namespace": ref.namespace, "conditions": [], "scaling": scaling}
        assert found.service == shown

    asyncio.run(test())
