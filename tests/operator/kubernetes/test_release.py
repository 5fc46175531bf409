"""A release's life with real Helm: it takes CRDs over that are there, and does not go while services need it."""

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import threading
import time

import control_plane
import pytest
import release
import yaml

from legato_operator.kubernetes import remaining

SYSTEM, OTHER = "legato-system", "legato-other"
SERVICES = "inferenceservices.serving.legato.dev"
PART_OF = "--selector=app.kubernetes.io/part-of=legato"
ALL = "deployments,serviceaccounts,roles,clusterroles,clusterrolebindings,crds"
EVERYTHING = ("get", ALL, "--namespace", SYSTEM, "--output=name", PART_OF)

pytestmark = release.NEEDED


@pytest.fixture(scope="module")
def tools(programs):
    with control_plane.running(programs) as api, release.tools(api) as found:
        for namespace in (SYSTEM, OTHER, "team"):
            found.kubectl("create", "namespace", namespace)
        yield found


def _crd(tools):
    """The release, and if it knows a field of the present version, and one of another."""
    item = json.loads(tools.kubectl("get", "crd", SERVICES, "--output=json"))
    spec = item["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    owner = item["metadata"].get("annotations", {}).get("meta.helm.sh/release-name", "")
    return owner, "rollout" in spec, "rolledOut" in spec


@pytest.fixture
def older(tmp_path):
    """The chart as another version has it: with another CRD."""
    chart = shutil.copytree(release.CHART, tmp_path / "chart")
    file = chart / "files" / "crds" / "inferenceservices.yaml"
    item = yaml.safe_load(file.read_text())
    spec = item["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    spec["rolledOut"] = spec.pop("rollout")
    file.write_text(yaml.safe_dump(item))
    return chart


def _helm(tools, verb, name, namespace, *more, chart=release.CHART, refused=False):
    """Helm's errors. Fails unless it succeeds or, with `refused`, fails."""
    charts = (str(chart),) if verb in ("install", "upgrade") else ()
    done = tools.run("helm", verb, name, *charts, "--namespace", namespace, *more)
    assert bool(done.returncode) is refused, done.stderr
    return done.stderr


@contextlib.contextmanager
def _without_release(tools):
    """Whatever a test installs is gone afterwards, with the CRDs."""
    yield
    for item in json.loads(tools.run("helm", "list", "--all", "--all-namespaces", "--output=json").stdout):
        _helm(tools, "uninstall", item["name"], item["namespace"], "--no-hooks")
    _delete_crds(tools)


def _delete_crds(tools):
    """Once objects of every CRD can be listed. Where one is deleted right after a change, or before its first use, the
    API server fails with "storage is (re)initializing", which it writes into the CRD: that changes it again, and tries
    come farther and farther apart.
    """
    crds = tools.kubectl("get", "crd", PART_OF, "--output=name").split()
    until = time.monotonic() + 120
    for kind in [name.partition("/")[2] for name in crds]:
        while (done := tools.run("kubectl", "get", kind, "--all-namespaces")).returncode:
            assert time.monotonic() < until, done.stderr
            time.sleep(0.1)
    tools.kubectl("delete", "crd", PART_OF, "--ignore-not-found")


def test_crds_are_adopted_brought_up_to_date_and_rolled_back(tools, older):
    """As docs/kubernetes.md says: those of kubectl and of another release. Without the flag, Helm refuses and changes
    nothing.
    """
    with _without_release(tools):
        tools.kubectl("create", f"--filename={older / 'files' / 'crds'}")
        assert "invalid ownership metadata" in _helm(tools, "install", "legato", SYSTEM, refused=True)
        assert _crd(tools) == ("", False, True)
        _helm(tools, "install", "legato", SYSTEM, "--take-ownership")
        assert _crd(tools) == ("legato", True, False)
        _helm(tools, "upgrade", "legato", SYSTEM, chart=older)
        assert _crd(tools) == ("legato", False, True)
        _helm(tools, "rollback", "legato", SYSTEM, "1")
        assert _crd(tools) == ("legato", True, False), "rolled back"
        _helm(tools, "uninstall", "legato", SYSTEM, "--no-hooks")
        assert _crd(tools) == ("legato", True, False), "kept, with all services"
        _helm(tools, "install", "another", OTHER, "--take-ownership")
        assert _crd(tools) == ("another", True, False)


def _run_hook(tools, tmp_path, stopped):
    """Runs the hook's pod with its account's token and reports its end, as a kubelet does."""
    path = f"/api/v1/namespaces/{SYSTEM}/pods/legato-check-no-services"
    seen = None
    while not stopped.is_set():
        status, pod = tools.api.call("GET", path)
        if status == 200 and pod["metadata"]["uid"] != seen:
            seen = pod["metadata"]["uid"]
            (container,) = pod["spec"]["containers"]
            account = tools.as_account(SYSTEM, pod["spec"]["serviceAccountName"])
            (tmp_path / "kubeconfig").write_text(account.kubeconfig())
            environment = {**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig"), "LEGATO_NAMESPACE": SYSTEM}
            command = [sys.executable, "-m", "legato_cli.main", *container["args"]]
            ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
            (tmp_path / "said").write_text(ran.stderr)
            status = {"status": {"phase": "Failed" if ran.returncode else "Succeeded"}}
            tools.api.call("PATCH", f"{path}/status", status, "application/merge-patch+json")
        time.sleep(0.05)


@pytest.fixture
def kubelet(tools, tmp_path):
    stopped = threading.Event()
    thread = threading.Thread(target=_run_hook, args=(tools, tmp_path, stopped))
    thread.start()
    yield
    stopped.set()
    thread.join(60)


def test_uninstalling_fails_while_there_are_services_and_changes_nothing(tools, kubelet, build, tmp_path):
    """Helm holds such a release for one that is being uninstalled: docs/kubernetes.md says how it goes on."""
    with _without_release(tools):
        tools.install("legato", SYSTEM)
        before = tools.kubectl(*EVERYTHING)
        tools.kubectl("create", "--namespace=team", "--filename=-", stdin=yaml.safe_dump(build()))
        refused = _helm(tools, "uninstall", "legato", SYSTEM, refused=True)
        assert "pod legato-check-no-services failed" in refused
        assert "InferenceServices are left, which nobody would" in (tmp_path / "said").read_text()
        assert "team/demo" in (tmp_path / "said").read_text()
        assert tools.kubectl(*EVERYTHING) == before
        assert "no deployed releases" in _helm(tools, "upgrade", "legato", SYSTEM, refused=True)
        _helm(tools, "rollback", "legato", SYSTEM, "1")
        _helm(tools, "upgrade", "legato", SYSTEM)
        tools.kubectl("delete", "--namespace=team", "inferenceservice", "demo")
        _helm(tools, "uninstall", "legato", SYSTEM)
        assert "are left" not in (tmp_path / "said").read_text()
        assert _crd(tools)[0] == "legato"
        status, _ = tools.api.call("GET", f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/legato")
        assert status == 404


def test_services_of_others_keep_no_release(tools, build):
    """Services in namespaces that it ignores, or that another release has claimed; and no CRDs, no services."""
    with _without_release(tools):
        tools.install("legato", SYSTEM)
        settings = tools.settings("legato", SYSTEM)

        def left(given=settings):
            return remaining.check(given, tools.api.configuration)

        assert left() == ""
        services = [build() | {"metadata": {"name": f"s{number:02}"}} for number in range(12)]
        tools.kubectl("create", "--namespace=team", "--filename=-", stdin=yaml.safe_dump_all(services))
        assert "team/s00, team/s01" in left()
        assert "team/s09 and 2 more. Delete them" in left()
        assert left(dataclasses.replace(settings, ignored_namespaces=("team",))) == ""
        assert left(dataclasses.replace(settings, namespaces=(OTHER,))) == ""
        assert "team/s00" in left(dataclasses.replace(settings, namespaces=("team",)))
        for holder, mine in ((f"{SYSTEM}/legato-operator", True), (f"{OTHER}/another-operator", False)):
            tools.kubectl("delete", "--namespace=team", "lease", "legato-services", "--ignore-not-found")
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {"holderIdentity": holder}}
            lease |= {"metadata": {"name": "legato-services", "namespace": "team"}}
            tools.kubectl("create", "--filename=-", stdin=yaml.safe_dump(lease))
            assert bool(left()) is mine
        tools.kubectl("delete", "--namespace=team", "inferenceservices,leases", "--all")
        _helm(tools, "uninstall", "legato", SYSTEM, "--no-hooks")
        _delete_crds(tools)
        assert left() == ""
