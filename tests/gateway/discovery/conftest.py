"""A real API server to look workers up in."""

from collections.abc import Iterator
from pathlib import Path

import control_plane
import pytest
import yaml
from tcp_relay import TcpRelay

NAMESPACE = "/api/v1/namespaces/demo"
POOLS = "/apis/serving.legato.dev/v1alpha1/namespaces/demo/workerpools"
CRDS = Path(__file__).parents[3] / "crds"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/demo/endpointslices"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/demo"


class Cluster:
    """A real API server with one namespace, and its administrator's hand."""

    def __init__(self, server: control_plane.ApiServer) -> None:
        self.server = server

    def call(self, *request: object) -> dict:
        status, answer = self.server.call(*request)
        assert status < 300, answer
        return answer

    def make(self, path: str, item: dict) -> dict:
        return self.call("POST", path, item)

    def _apply(self, path: str, item: dict) -> None:
        self.call("PATCH", f"{path}?fieldManager=test&force=true", item, "application/apply-patch+yaml")

    def put(
        self, name: str, *pods: tuple[str, str], service: str = "s-workers", port: int = 8082, **conditions: bool
    ) -> None:
        """Writes a slice with pods and their addresses, as the endpoint controller does."""
        item = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4",
            "ports": [{"name": "control", "port": port, "protocol": "TCP"}],
            "endpoints": [
                {"addresses": [at], "conditions": conditions, "targetRef": {"kind": "Pod", "name": pod, "uid": pod}}
                for pod, at in pods
            ],
        }
        self._apply(f"{SLICES}/{name}", item)

    def pool(self, name: str, *uids: str) -> None:
        """Writes a WorkerPool, which the operator reports to have these pods."""
        item = {"apiVersion": "serving.legato.dev/v1alpha1", "kind": "WorkerPool", "metadata": {"name": name}}
        self._apply(f"{POOLS}/{name}", item | {"spec": {"service": "s", "role": name.rpartition("-")[2]}})
        self._apply(f"{POOLS}/{name}/status", item | {"status": {"workers": uids}})

    def account(self, name: str) -> str:
        """Returns a new service account's token; it may do nothing yet."""
        self.make(f"{NAMESPACE}/serviceaccounts", {"metadata": {"name": name}})
        answer = self.make(f"{NAMESPACE}/serviceaccounts/{name}/token", {"spec": {"expirationSeconds": 3600}})
        return answer["status"]["token"]

    def allow(self, name: str) -> None:
        """Grants the rights that the operator grants to a gateway's account."""
        slices = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]}
        pools = {"apiGroups": ["serving.legato.dev"], "resources": ["workerpools"], "verbs": ["get"]}
        pools["resourceNames"] = ["s-prefill", "s-decode"]
        self.make(f"{RBAC}/roles", {"metadata": {"name": name}, "rules": [slices, pools]})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        subject = {"kind": "ServiceAccount", "name": name, "namespace": "demo"}
        self.make(f"{RBAC}/rolebindings", {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]})


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with control_plane.running(control_plane.needed()) as server:
        server.install(sorted(CRDS.glob("*.yaml")))
        cluster = Cluster(server)
        cluster.make("/api/v1/namespaces", {"metadata": {"name": "demo"}})
        yield cluster


@pytest.fixture
def kubeconfig(tmp_path: Path, request: pytest.FixtureRequest):
    """Writes a kubeconfig, by default of the cluster's administrator, and returns its path."""

    def write(server: str = "", token: str = "") -> Path:
        admin = None if server and token else request.getfixturevalue("cluster").server
        at = {"server": server or admin.url, "insecure-skip-tls-verify": True}
        config = {
            "clusters": [{"name": "c", "cluster": at}],
            "users": [{"name": "u", "user": {"token": token or admin.token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    return write


@pytest.fixture(autouse=True)
def no_slices_stay(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "cluster" in request.fixturenames:
        for path in (SLICES, POOLS):
            assert request.getfixturevalue("cluster").server.call("DELETE", path)[0] == 200


@pytest.fixture
def tcp_relay() -> type[TcpRelay]:
    return TcpRelay
