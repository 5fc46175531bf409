"""`legato operator --check-no-services`, where the API server does not say whether services are left."""

import asyncio
import json

from aiohttp import web
from answering_server import serving
from kubernetes.config import kube_config


async def test_check_that_is_refused_says_how_to_uninstall_without_it(tmp_path, monkeypatch, legato):
    """A watched namespace that was deleted took the operator's right to look there with it, for good."""

    async def refuse(_request):
        return web.json_response({"message": "inferenceservices is forbidden in namespace gone"}, status=403)

    path = tmp_path / "kubeconfig"
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(path))  # of KUBECONFIG, at import
    monkeypatch.setenv("LEGATO_NAMESPACE", "legato-system")
    images = ("--engine-image=engine:1", "--gateway-image=gateway:1")
    async with serving(refuse) as address:
        config = {
            "clusters": [{"name": "it", "cluster": {"server": f"http://{address}"}}],
            "users": [{"name": "it", "user": {}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "current-context": "it",
        }
        path.write_text(json.dumps(config))
        code, _, err = await asyncio.to_thread(legato, "operator", "--check-no-services", "--namespace=gone", *images)
    assert code == 1, err
    assert "403: inferenceservices is forbidden in namespace gone" in err
    assert "`helm uninstall --no-hooks`" in err
