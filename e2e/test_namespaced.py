"""A second release for one namespace, with a Role there and no rights on the cluster, beside the first."""

import paced
from helm import Release
from kube import Namespace
from service import Service


def test_a_release_for_one_namespace_serves_and_stays_while_needed(operator: Release, namespace: Namespace) -> None:
    namespace.apply(paced.manifest("ours"))
    service = Service(namespace, "ours")
    service.until_ready()
    _, route = service.ask("Name the capital of France.")
    assert route["transport"].startswith("ucx:")
    instances = {event["reportingInstance"] for event in service.events()}
    assert instances
    assert all(name.startswith(operator.name) for name in instances), "only the namespace's operator worked on it"
    workers = service.workers()
    reason = operator.refused_uninstall()
    assert f"{namespace.name}/ours" in reason or "check-no-services failed" in reason
    service.scale("decode", 2)
    service.until_pods("decode", 2)
    assert workers < service.workers(), "it is still looked after"
