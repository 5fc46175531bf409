"""Whole outputs: from a manifest to every object, as stored in `golden/`, and what a real API server makes of them."""

import functools
from pathlib import Path

import golden
import pytest
import yaml

from legato_cli import main
from legato_engine import settings as worker_settings
from legato_gateway import settings as gateway_settings
from legato_operator.api import parsing
from legato_operator.kubernetes.client.api import KubernetesCluster
from legato_operator.local import command
from legato_operator.manifests.pods import adapters
from legato_operator.planning import checks, drift
from legato_operator.planning.actions import Apply

EXAMPLES = {path.parent.name: path for path in sorted((Path(__file__).parents[2] / "examples").glob("*/*.yaml"))}
UNRESTRICTED = {"adapters", "gpu-rdma", "rdma"}
MANAGER = "legato-operator"
PARSER = main.parser()


stored = functools.cache(lambda case: golden.Golden(case).stored())


@pytest.mark.parametrize("case", golden.CASES)
def test_objects_are_those_stored(case):
    assert golden.Golden(case).text() == golden.Golden(case).file.read_text()


@pytest.mark.parametrize("case", golden.CASES)
def test_a_delta_loses_nothing(case):
    assert stored(case) == golden.Golden(case).run()


@pytest.mark.parametrize("case", golden.CASES)
def test_second_pass_starts_workers_and_writes_nothing_else(case):
    made = golden.Golden(case)
    made.take(made.look())
    second = [action.item for phase in made.look().phases for action in phase.actions if isinstance(action, Apply)]
    assert {item["kind"] for item in second} == {"Pod"}


@pytest.mark.parametrize("case", golden.CASES)
def test_objects_belong_to_their_service(case):
    """So that garbage collection ends what the operator did not, and the operator finds what is its own."""
    for item in stored(case):
        owners = [owner["kind"] for owner in item["metadata"]["ownerReferences"]]
        assert owners == [*(["WorkerPool"] if item["kind"] == "Pod" else []), "InferenceService"]
        assert item["metadata"]["labels"]["serving.legato.dev/service"] == golden.Golden(case).service.metadata.name


@pytest.mark.parametrize("case", golden.CASES)
def test_objects_choose_pods_of_their_service_only(case):
    """By a label that no others have, and others that some of its pods have."""
    name = golden.Golden(case).service.metadata.name
    pods = [item.get("spec", {}).get("template", item)["metadata"]["labels"] for item in stored(case)]
    chosen = [selector for item in stored(case) for selector in _selectors(item.get("spec", {}))]
    assert len(chosen) > 5
    for selector in chosen:
        assert selector["serving.legato.dev/service"] == name
        assert any(selector.items() <= labels.items() for labels in pods), selector


def _selectors(spec):
    """By which an object chooses pods of its namespace."""
    peers = [peer for rule in spec.get("ingress", ()) if "from" in rule for peer in rule["from"]]
    others = [peer["podSelector"] for peer in peers if "namespaceSelector" not in peer]
    found = [spec.get("selector") or spec.get("podSelector"), *others]
    return [selector.get("matchLabels", selector) for selector in found if selector]


@pytest.mark.parametrize("case", golden.CASES)
def test_processes_accept_what_they_are_started_with(case):
    variables = {"LEGATO_POD_NAME": "pod", "LEGATO_POD_IP": "10.0.0.1", "LEGATO_POD_REVISION": "abc"}
    deadline = golden.Golden(case).service.spec.drain.deadline
    containers = list(_containers(stored(case)))
    assert {container["name"] for container in containers} >= {"worker", "gateway"}
    for container in containers:
        flags = PARSER.parse_args(command.expand(container["args"], variables))
        if container["name"] == "worker":
            assert worker_settings.read(flags, {"LEGATO_TOKEN": "t"}).drain_deadline == deadline
        if container["name"] == "gateway":
            assert gateway_settings.read(flags, {"LEGATO_TOKEN": "t"}).drain_deadline == deadline


def _containers(objects):
    for item in objects:
        spec = item.get("spec", {})
        pod = spec["template"]["spec"] if item["kind"] == "Deployment" else spec
        found = [*pod.get("initContainers", ()), *pod.get("containers", ())]
        yield from (
            each
            for each in found
            if each["name"] in ("worker", "gateway", "model") or adapters.DOWNLOAD.fullmatch(each["name"])
        )


@pytest.mark.parametrize("case", golden.CASES)
async def test_api_server_takes_all_of_them_and_finds_nothing_to_change(api_server, case):
    """Every field is known to it, pods run at the restricted level, and a second apply writes nothing."""
    await _check_taken(api_server, f"golden-{case}", case in UNRESTRICTED, stored(case))


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
async def test_api_server_takes_every_example_and_what_is_made_of_it(api_server, example):
    """As it is written, without a field that the CRD does not know; what is made of it is valid, too."""
    given, services = example.parent.name, "/apis/serving.legato.dev/v1alpha1/namespaces/default/inferenceservices"
    content = yaml.safe_load(example.read_text())
    status, answer = api_server.call("POST", f"{services}?fieldValidation=Strict&dryRun=All", content)
    assert status == 201, answer
    made = golden.Golden(given, example)
    assert parsing.service_from_object(answer).spec == made.service.spec
    assert checks.unavailable(made.service.spec, in_containers=True) == []
    objects = made.run()
    assert {container["name"] for container in _containers(objects)} >= {"worker", "gateway"}
    for container in _containers(objects):
        assert container["resources"].keys() == {"requests", "limits"}, "namespaces may have a quota"
    await _check_taken(api_server, f"example-{given}", given in UNRESTRICTED, objects)


async def _check_taken(api_server, namespace, unrestricted, items):
    """Asserts that a namespace accepts these objects, and accepts them again without a change."""
    level = "privileged" if unrestricted else "restricted"
    labels = {"pod-security.kubernetes.io/enforce": level, "pod-security.kubernetes.io/enforce-version": "latest"}
    item = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}
    _created(api_server.call("POST", "/api/v1/namespaces", item))
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "serving"}}
    _created(api_server.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", priority | {"value": 1}))

    cluster = KubernetesCluster(api_server.client())
    try:
        for desired in [_moved(item, namespace) for item in items]:
            first = await cluster.apply(desired, MANAGER)
            second = await cluster.apply(desired, MANAGER)
            assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
            assert drift.contained(desired, first), (desired, first)
    finally:
        cluster.close()


def _created(answer):
    status, content = answer
    assert status in {201, 409}, content


def _moved(item, namespace):
    moved = {**item, "metadata": {**item["metadata"], "namespace": namespace}}
    if "subjects" in moved:
        moved["subjects"] = [{**subject, "namespace": namespace} for subject in moved["subjects"]]
    return moved
