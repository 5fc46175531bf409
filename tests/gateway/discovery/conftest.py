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


class Cluster:
    """A real API server with one namespace, and its administrator's hand."""

    def __init__(self, server: control_plane.ApiServer) -> None:
        self.server = server

    def make(self, path: str, item: dict) -> dict:
        status, answer = self.server.call("POST", path, item)
        assert status < 300, answer
        return answer

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
        path = f"{SLICES}/{name}?fieldManager=test&force=true"
        status, answer = self.server.call("PATCH", path, item, "application/apply-patch+yaml")
        assert status < 300, answer

    def tell(self, pool: str, *uids: str) -> None:
        """Whose pods a WorkerPool has, as its operator tells; the pool is made where there is none."""
        role = pool.rpartition("-")[2]
        item = {"apiVersion": "serving.legato.dev/v1alpha1", "kind": "WorkerPool", "metadata": {"name": pool}}
        for path, part in (
            (pool, {"spec": {"service": "s", "role": role}}),
            (f"{pool}/status", {"status": {"workers": uids}}),
        ):
            path = f"{POOLS}/{path}?fieldManager=test&force=true"
            status, answer = self.server.call("PATCH", path, item | part, "application/apply-patch+yaml")
            assert status < 300, answer

    def drop(self, name: str) -> None:
        status, answer = self.server.call("DELETE", f"{SLICES}/{name}")
        assert status < 300, answer

    def account(self, name: str) -> str:
        """A new service account's token; it may do nothing yet."""
        self.make(f"{NAMESPACE}/serviceaccounts", {"metadata": {"name": name}})
        answer = self.make(f"{NAMESPACE}/serviceaccounts/{name}/token", {"spec": {"expirationSeconds": 3600}})
        return answer["status"]["token"]

    def allow(self, name: str) -> None:
        """What the operator grants to a gateway's account."""
        rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/demo"
        slices = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]}
        pools = {"apiGroups": ["serving.legato.dev"], "resources": ["workerpools"], "verbs": ["get"]}
        pools["resourceNames"] = ["s-prefill", "s-decode"]
        self.make(f"{rbac}/roles", {"metadata": {"name": name}, "rules": [slices, pools]})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        subject = {"kind": "ServiceAccount", "name": name, "namespace": "demo"}
        self.make(f"{rbac}/rolebindings", {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]})

    def kubeconfig(self, token: str = "", port: int | None = None) -> str:
        """The text of a kubeconfig for this server, or for another way to it by a local port."""
        at = {"server": f"https://127.0.0.1:{port}" if port else self.server.url, "insecure-skip-tls-verify": True}
        config = {
            "clusters": [{"name": "c", "cluster": at}],
            "users": [{"name": "u", "user": {"token": token or self.server.token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        return yaml.safe_dump(config)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with control_plane.running(control_plane.needed()) as server:
        server.install(sorted(CRDS.glob("*.yaml")))
        cluster = Cluster(server)
        cluster.make("/api/v1/namespaces", {"metadata": {"name": "demo"}})
        yield cluster


@pytest.fixture
def config(cluster: Cluster, tmp_path: Path) -> Path:
    """A kubeconfig of the cluster's administrator."""
    path = tmp_path / "kubeconfig"
    path.write_text(cluster.kubeconfig())
    return path


@pytest.fixture(autouse=True)
def no_slices_stay(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "cluster" in request.fixturenames:
        for path in (SLICES, POOLS):
            assert request.getfixturevalue("cluster").server.call("DELETE", path)[0] == 200


@pytest.fixture
def tcp_relay() -> type[TcpRelay]:
    return TcpRelay
