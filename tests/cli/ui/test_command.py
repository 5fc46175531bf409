"""What a running `legato up` tells `legato ui`."""

import pytest
from local_services import DEMO, manifest, operations, store_pod

from legato_cli import admin
from legato_cli.ui import local
from legato_cli.ui.target import GatewayTarget
from legato_operator.api import parsing
from legato_operator.local.store import Store
from legato_operator.manifests import common, secret
from legato_protocol import names


@pytest.mark.anyio
async def test_a_running_service_tells_its_ready_gateways_its_token_and_what_was_decided():
    store, scaling = Store(lambda: "2026-01-01T00:00:00Z"), {"pools": {}, "records": []}
    await store.apply(manifest(), "test")
    await store.patch_status(DEMO, {"scaling": scaling})
    token = secret.manifest(parsing.read_mapping(manifest()), secret.ServiceToken("the-token"))
    await store.apply(token, "test")
    await store_pod(store, DEMO, "gateway-b", common.GATEWAY, names.APP_GATEWAY)
    await store_pod(store, DEMO, "gateway-a", common.GATEWAY, names.APP_GATEWAY, ready=False)
    await store_pod(store, DEMO, "decode-0", "decode", names.APP_WORKER)
    async with admin.listening(DEMO.name, operations(store).answer):
        found = await local.LocalSource(None).find()
    assert found.gateways == (GatewayTarget("gateway-b", "127.0.0.1:4321"),)
    assert found.token == "the-token"
    assert found.service == {"name": "demo", "namespace": "default", "conditions": [], "scaling": scaling}
