"""Every field of the manifest changes the plan or is refused.

What the plan starts is parsed by the processes' own settings, so that no flag is one that they do not know.
"""

import dataclasses
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import settings_page
from field_changes import CHANGES, base_for, leaves, service_of, with_field
from planned import actions, observed, pod

from legato_cli import main
from legato_engine import settings as worker_settings
from legato_gateway import settings as gateway_settings
from legato_operator.api import crd, resources
from legato_operator.api.resources import Spec
from legato_operator.local import command
from legato_operator.manifests import common, placement, pool, revision
from legato_operator.manifests.pods import worker
from legato_operator.observing.observed import Observed, Pod, WorkerState
from legato_operator.planning import checks
from legato_operator.planning.actions import Apply
from legato_operator.planning.plan import plan

PLACEMENT = placement.local(("legato",))
CLUSTER = placement.kubernetes(placement.Containers("engine", "gateway"))
DOCS = (Path(__file__).parents[2] / "docs" / "manifest.md").read_text()
SCHEMA = crd.inference_service()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
PARSER = main.parser()


@functools.cache
def _changed(path: str) -> resources.InferenceService:
    return service_of(with_field(base_for(path), path, CHANGES[path]))


@functools.cache
def _plans_before(base: str, where: placement.PodPlacement) -> list[Any]:
    """Plans of a service without the change; most changes have the same one."""
    return list(_plans(service_of(json.loads(base)), where))


def _reaches(path: str, where: placement.PodPlacement = PLACEMENT) -> bool:
    """True if the change makes another plan; most do so of the first."""
    both = zip(_plans_before(json.dumps(base_for(path)), where), _plans(_changed(path), where), strict=True)
    return any(before != after for before, after in both)


def _plans(service: resources.InferenceService, where: placement.PodPlacement = PLACEMENT) -> Iterator[Any]:
    """For a cluster with nothing but pools in it, for one that was scaled up, for one that waits for its rollout, and
    for one whose rollout failed. Its workers have found no transport.
    """
    old = [
        pod(f"demo-{role}-{i}", role, "old", state=WorkerState(0, False, ""))
        for role, count in (("prefill", 2), ("decode", 2), ("gateway", 1))
        for i in range(count)
    ]
    passes = [observed(service, _pools(service, *sizes)) for sizes in ((), (3, 3), (3, 2), (2, 3))]
    rolling = observed(service, _pools(service, 2, 2), old)
    return (plan(each, where) for each in (*passes, rolling, _failed(rolling)))


def _failed(rolling: Observed) -> Observed:
    """With a new worker that is not ready yet, after the operator saw another fail."""
    service = rolling.service
    good = {"metadata": {"labels": {}}, "spec": {}}
    kept = common.signed(revision.controller_revision(service, "decode", good, 1))
    kept["metadata"] |= {"uid": "uid"}
    desired = common.revision_of(worker.template(service, "decode", PLACEMENT))
    late = Pod("demo-decode-9", "uid-9", "decode", desired, "9", False, False, waiting=100.0)
    status = {"pools": {"decode": {"failedRevision": desired, "failure": "it crashed"}}}
    return dataclasses.replace(rolling, pods=(*rolling.pods, late), objects=(*rolling.objects, kept), status=status)


def _pools(service: resources.InferenceService, *desired: int) -> tuple[Any, ...]:
    made = [pool.worker_pool(service, role) for role in ("prefill", "decode")]
    extras = [{"replicas": count} for count in desired] or [{}, {}]
    return tuple(
        {**item, "metadata": {**item["metadata"], "uid": "uid", "generation": 1}, "spec": {**item["spec"], **extra}}
        for item, extra in zip(made, extras, strict=True)
    )


def test_every_field_is_looked_at():
    assert set(leaves(Spec)) == set(CHANGES)


@pytest.mark.parametrize("path", sorted(CHANGES))
def test_field_reaches_a_process_or_is_refused(path):
    service = _changed(path)
    refused = checks.unavailable(service.spec)
    if refused:
        assert any(f"spec.{path}".startswith(_field(problem)) for problem, _ in refused)
        assert all(not made.phases for made in _plans(service))
    elif any(f"spec.{path}".startswith(field) for field, _ in checks.without_effect(service.spec, has_gpus=True)):
        assert not _reaches(path)
        assert _reaches(path, CLUSTER)
    elif path in ("scaling.mode", "scaling.scaleDownStabilization", "scaling.idleAfter"):
        assert not _reaches(path)  # for whoever sets the replicas
    else:
        assert _reaches(path)


@pytest.mark.parametrize("path", sorted(CHANGES))
def test_explain_and_docs_say_what_is_not_available_yet(path):
    """`kubectl explain` shows the description: a field that is only refused there would look as if it did something."""
    spec = _changed(path).spec
    refused = [
        {field for field, _ in checks.unavailable(spec, contained) if f"spec.{path}".startswith(_field(field))}
        for contained in (False, True)
    ]
    *_, row = [line for line in DOCS.splitlines() if line.startswith("|") and f"`{path}`" in line.split("|")[1]]
    for text in (_description(path), row):
        assert ("not available yet" in text) is all(refused)


def _field(problem: str) -> str:
    """Its path without an entry's place in its list."""
    return problem.replace(".0.", ".")


def _description(path: str) -> str:
    schema = SCHEMA
    for name in ("spec", *path.split(".")):
        schema = schema.get("items", schema)["properties"][name]
    return str(schema["description"])


@pytest.mark.parametrize("path", sorted(CHANGES))
def test_processes_accept_what_they_are_started_with(path):
    service = _changed(path)
    pods = [action.item for action in actions(next(_plans(service)), Apply) if action.item["kind"] == "Pod"]
    for made in pods:
        container = made["spec"]["containers"][0]
        flags = PARSER.parse_args(command.expand(container["command"][1:], {"LEGATO_LISTEN_FD": "3"}))
        environ = {"LEGATO_TOKEN": "token"}
        read = (worker_settings if container["name"] == "worker" else gateway_settings).read(flags, environ)
        assert read.drain_deadline == service.spec.drain.deadline
        assert made["spec"]["terminationGracePeriodSeconds"] > read.drain_deadline
    assert pods or checks.unavailable(service.spec)


def test_every_flag_can_be_set():
    assert settings_page.unreachable() == []
