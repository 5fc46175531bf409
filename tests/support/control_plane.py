"""A real etcd and kube-apiserver of a test run, on free ports, gone with it."""

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import required
import urllib3
import yaml
from kubernetes.client import ApiClient, Configuration

urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # the server makes its own certificate

CRDS = tuple(sorted((Path(__file__).parents[2] / "crds").glob("*.yaml")))
PROGRAMS = ("etcd", "kube-apiserver")
START_SECONDS = 120
CONTROLLERS = (
    "deployment-controller",
    "replicaset-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "disruption-controller",
)
ATTEMPTS = 3  # a free port may be taken by another before it is used


class Program:
    """A program of the control plane; `log` holds what it says."""

    def __init__(self, log: Path, *command: str) -> None:
        self.log = log
        self._command = command
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(self._command, stdout=out, stderr=out)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def last_words(self) -> str:
        return self.log.read_text()[-2000:]


@dataclass(frozen=True)
class ApiServer:
    """A running API server: its address, and the token of the cluster's administrator."""

    url: str
    token: str
    program: "Program"
    certificate: Path  # its own; a client without one reads those of the whole system for each connection

    def kill(self) -> None:
        """As by SIGKILL: connections are reset, what is stored stays."""
        self.program.kill()

    def start(self) -> None:
        """After `kill`: the same server at the same address."""
        self.program.start()
        _wait_ready(self)

    def kubeconfig(self, url: str | None = None) -> str:
        """For programs that ask for one; `url` where they shall reach the server by another way."""
        found = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": url or self.url, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "admin", "user": {"token": self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
            "current-context": "test",
        }
        return yaml.safe_dump(found)

    def client(self) -> ApiClient:
        return ApiClient(self.configuration())

    @cached_property
    def _own(self) -> ApiClient:
        return self.client()

    def configuration(self, url: str | None = None) -> Configuration:
        """The configuration of such a client."""
        configuration = Configuration(host=url or self.url)
        configuration.verify_ssl = False
        configuration.ssl_ca_cert = str(self.certificate)
        configuration.api_key = {"authorization": self.token}
        configuration.api_key_prefix = {"authorization": "Bearer"}
        return configuration

    def call(
        self, method: str, path: str, body: object = None, content_type: str = "application/json"
    ) -> tuple[int, Any]:
        """Status code and content of one plain call; a path that is not served yet is answered by plain text."""
        headers = {"Content-Type": content_type}
        call = self._own.param_serialize(method, path, header_params=headers, body=body, auth_settings=["BearerToken"])
        response = self._own.call_api(*call, _request_timeout=30)
        text = response.read().decode()
        is_json = response.headers.get("content-type", "").startswith("application/json")
        return response.status, json.loads(text) if is_json else text

    def install(self, files: Sequence[Path]) -> None:
        """Make these CRDs known and wait until they are served."""
        for file in files:
            definition = yaml.safe_load(file.read_text())
            path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{definition['metadata']['name']}"
            query = "?fieldManager=test&force=true&fieldValidation=Strict"
            status, answer = self.call("PATCH", path + query, definition, "application/apply-patch+yaml")
            assert status < 300, answer
            spec = definition["spec"]
            served = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
            deadline = time.monotonic() + START_SECONDS
            while self.call("GET", served)[0] != 200 and time.monotonic() < deadline:
                time.sleep(0.05)


def programs() -> Path | None:
    """The folder with etcd and kube-apiserver; None where there is none.

    Raises FileNotFoundError for a KUBEBUILDER_ASSETS without them: tests that somebody asked for are not skipped.
    """
    given, found = os.environ.get("KUBEBUILDER_ASSETS"), shutil.which("kube-apiserver")
    if given and (lacking := _lacking(Path(given), PROGRAMS)):
        raise FileNotFoundError(f"no {lacking} in KUBEBUILDER_ASSETS={given}")
    folder = given or (found and os.path.dirname(found))
    return None if not folder or _lacking(Path(folder), PROGRAMS) else Path(folder)


def needed(*more: str) -> Path:
    """The folder with etcd, kube-apiserver and `more`. Skips the test where there is none."""
    folder = programs()
    if folder is None:
        required.missing("no etcd and kube-apiserver on the PATH or in the folder that KUBEBUILDER_ASSETS names")
    if lacking := _lacking(folder, more):
        required.missing(f"no {lacking} in {folder}")
    if shutil.which("openssl") is None:
        required.missing("openssl is not on the PATH")
    return folder


@contextlib.contextmanager
def running(folder: Path) -> Iterator[ApiServer]:
    """A fresh, empty API server, ready."""
    for attempt in range(ATTEMPTS):
        with tempfile.TemporaryDirectory(prefix="legato-api-") as scratch, contextlib.ExitStack() as stack:
            try:
                server = _start(folder, Path(scratch), stack)
            except ChildProcessError:
                if attempt == ATTEMPTS - 1:
                    raise
                continue
            yield server
            return


@contextlib.contextmanager
def controlled(folder: Path, crds: Sequence[Path] = CRDS, flags: Sequence[str] = ()) -> Iterator[ApiServer]:
    """An API server that knows the CRDs, with Kubernetes' own controllers: Deployments have pods, objects that lost
    their owner go, and disruption budgets are counted. `flags` are further ones of the controllers.
    """
    ours = (f"--controllers={','.join(CONTROLLERS)}",)
    with running(folder) as api, _client(folder / "kube-controller-manager", api, *ours, *flags):
        api.install(crds)
        yield api


@contextlib.contextmanager
def _client(program: Path, api: ApiServer, *flags: str) -> Iterator[None]:
    """A program that works on the objects of that server."""
    with tempfile.TemporaryDirectory(prefix="legato-client-") as scratch:
        kubeconfig = Path(scratch) / "kubeconfig"
        kubeconfig.write_text(api.kubeconfig())
        command = (str(program), f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--secure-port=0", *flags)
        with _process(Path(scratch) / "log", *command):
            yield


def _start(folder: Path, scratch: Path, stack: contextlib.ExitStack) -> ApiServer:
    client, peer, secure = _free_ports(3)
    etcd = f"http://127.0.0.1:{client}"
    own = f"http://127.0.0.1:{peer}"
    clients = (f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}")
    peers = (f"--listen-peer-urls={own}", f"--initial-advertise-peer-urls={own}", f"--initial-cluster=default={own}")
    storage = (str(folder / "etcd"), f"--data-dir={scratch / 'etcd'}", "--unsafe-no-fsync")
    stack.enter_context(_process(scratch / "etcd.log", *storage, *clients, *peers))
    token = secrets.token_urlsafe(16)
    (scratch / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
    key = scratch / "accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    server = stack.enter_context(
        _process(
            scratch / "api.log",
            str(folder / "kube-apiserver"),
            f"--etcd-servers={etcd}",
            f"--cert-dir={scratch / 'certificates'}",
            f"--secure-port={secure}",
            "--bind-address=127.0.0.1",
            f"--token-auth-file={scratch / 'tokens.csv'}",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.0.0.0/16",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
            "--feature-gates=ImageVolume=true",  # on by itself from 1.35
        )
    )
    certificate = scratch / "certificates" / "apiserver.crt"
    api = ApiServer(f"https://127.0.0.1:{secure}", token, server, certificate)
    _wait_ready(api)
    return api


def _wait_ready(api: ApiServer) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if api.program.ended:
            raise ChildProcessError(api.program.last_words())
        with contextlib.suppress(Exception):  # refused, reset, not ready, and without a certificate before: ask again
            client = api.client()
            call = client.param_serialize("GET", "/readyz", auth_settings=["BearerToken"])
            if client.call_api(*call, _request_timeout=2).status == 200:
                return
        time.sleep(0.1)
    raise TimeoutError(api.program.last_words())


def _lacking(folder: Path, names: Sequence[str]) -> str:
    """The first of the programs that is not in the folder; empty when all are."""
    return next((name for name in names if not (folder / name).exists()), "")


@contextlib.contextmanager
def _process(log: Path, *command: str) -> Iterator[Program]:
    program = Program(log, *command)
    try:
        yield program
    finally:
        program.kill()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
