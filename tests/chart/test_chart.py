"""The chart as real Helm renders it: how the operator is started, what it may do, and which values are refused."""

import functools
import json
import re
import subprocess
import tarfile
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest
import required
import yaml

from legato_operator.api import kinds
from legato_operator.kubernetes import handlers
from legato_operator.kubernetes import settings as operator_settings
from legato_operator.manifests import common
from legato_operator.observing import ownership
from legato_protocol import names

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "legato"
NAMESPACED = ("--set", "watchNamespaces={models,other}")
RULES = sorted((CHART / "files" / "rules").glob("*.yaml"))
PROMETHEUS = ("--api-versions", "monitoring.coreos.com/v1")
Object = dict[str, Any]
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

pytestmark = required.program("helm")


def helm(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["helm", *arguments], capture_output=True, text=True, check=False, timeout=60)


@functools.cache  # reading the CRDs takes most of a test's time
def render(*arguments: str, release: str = "legato") -> list[Object]:
    done = helm("template", release, str(CHART), "--namespace", "legato-system", *arguments)
    assert done.returncode == 0, done.stderr
    return [item for item in yaml.load_all(done.stdout, Loader) if item]


def of_kind(objects: list[Object], kind: str) -> dict[str, Object]:
    return {item["metadata"]["name"]: item for item in objects if item["kind"] == kind}


def verbs(role: Object, group: str, resource: str) -> set[str]:
    """Returns the verbs that a role allows on all objects of a resource."""
    fitting = [r for r in role["rules"] if group in r["apiGroups"] and resource in r["resources"]]
    return {verb for rule in fitting if "resourceNames" not in rule for verb in rule["verbs"]}


@pytest.mark.parametrize("values", [(), NAMESPACED])
def test_helm_finds_nothing_to_say(values):
    done = helm("lint", "--strict", str(CHART), *values)
    assert done.returncode == 0, done.stdout


def test_the_crds_are_those_of_the_repository_and_outlive_the_release():
    rendered = of_kind(render(), "CustomResourceDefinition")
    files = [yaml.safe_load(file.read_text()) for file in sorted((ROOT / "crds").glob("*.yaml"))]
    assert {name: crd["spec"] for name, crd in rendered.items()} == {f["metadata"]["name"]: f["spec"] for f in files}
    for crd in rendered.values():
        assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_a_package_holds_the_crds(tmp_path):
    """In the repository the chart only links to them."""
    assert helm("package", str(CHART), "--destination", str(tmp_path)).returncode == 0
    (package,) = tmp_path.glob("*.tgz")
    with tarfile.open(package) as archive:
        held = {member.name: member for member in archive}
    for file in (ROOT / "crds").glob("*.yaml"):
        assert held[f"legato/files/crds/{file.name}"].size == file.stat().st_size


def read_settings(objects: list[Object]) -> operator_settings.OperatorSettings:
    """The operator's own understanding of the arguments that the chart gives it."""
    (deployment,) = of_kind(objects, "Deployment").values()
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    command, *flags = container["args"]
    assert command == "operator"
    parser = ArgumentParser()
    operator_settings.add_flags(parser)
    environment = {"LEGATO_NAMESPACE": "legato-system", "LEGATO_POD_NAME": "legato-0"}
    assert environment.keys() <= {entry["name"] for entry in container["env"]}
    return operator_settings.read(parser.parse_args(flags), environment)


DIGEST = "sha256:" + "a" * 64
BY_DEFAULT = {
    "namespaces": (),
    "http_port": names.OPERATOR_PORT,
    "token_role": "legato-tokens",
    "service_account": "legato",
    "tracing_endpoint": "",
    "upgrade_services": 1,
    "upgrade_pause": 60.0,
    "token_lifetime": 30,
    "gpu_resources": ("nvidia.com/gpu",),
}
IMAGES = {
    "engine_image": "example.com/ai/legato/engine:1.2",
    "gateway_image": "example.com/ai/legato/gateway:0.1.0",
    "image_pull_secrets": ("x",),
}


@pytest.mark.parametrize(
    ("values", "settings"),
    [
        ((), BY_DEFAULT),
        (("images.registry=example.com/ai", "images.engine.tag=1.2", "images.pullSecrets={x}"), IMAGES),
        (("images.registry=example.com/ai/", "images.engine.tag=1.2", "images.pullSecrets={x}"), IMAGES),
        ((f"images.engine.digest={DIGEST}", "images.engine.tag=v1"), {"engine_image": f"legato/engine@{DIGEST}"}),
        (("watchNamespaces={models,other}",), {"namespaces": ("models", "other"), "token_role": ""}),
        (("ignoreNamespaces={team}",), {"ignored_namespaces": ("team",)}),
        (("tracingEndpoint=http://otel:4318",), {"tracing_endpoint": "http://otel:4318"}),
        (("upgrade.services=3", "upgrade.pause=90s"), {"upgrade_services": 3, "upgrade_pause": 90.0}),
        (("tokenLifetimeDays=0",), {"token_lifetime": 0}),
        (("gpuResources={nvidia.com/mig-3g.71gb,a/b}",), {"gpu_resources": ("nvidia.com/mig-3g.71gb", "a/b")}),
    ],
)
def test_the_operator_understands_its_flags(values, settings):
    read = read_settings(render(*(word for value in values for word in ("--set", value))))
    assert {name: getattr(read, name) for name in settings} == settings


MONITORS = "monitoring.podMonitor.enabled=true,monitoring.prometheusRule.enabled=true"
EVERYTHING = (*PROMETHEUS, "--set", f"{MONITORS},monitoring.dashboards.enabled=true")


@pytest.mark.parametrize("values", [(), NAMESPACED])
def test_two_releases_in_a_namespace_share_no_object(values):
    """But the CRDs, of which one release of a cluster has `crds.install`."""
    places = []
    for release, crds in (("one", "true"), ("two", "false")):
        objects = render(*values, *EVERYTHING, "--set", f"crds.install={crds}", release=release)
        places.append({(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in objects})
        mine = [item for item in objects if item["metadata"].get("namespace") == "legato-system"]
        rules = [rule for role in of_kind(mine, "Role").values() for rule in role["rules"]]
        leases = [r["resourceNames"] for r in rules if "leases" in r["resources"] and "update" in r["verbs"]]
        assert leases == [[read_settings(objects).lease_name]]
    assert places[0] & places[1] == set()
    one, two = (read_settings(render(release=release)) for release in ("one", "two"))
    assert one.lease_name != two.lease_name
    assert one.token_role != two.token_role


@pytest.mark.parametrize("kind", [names.INFERENCE_SERVICE, *handlers.LABELLED])
def test_what_is_watched_and_owned_is_allowed(kind):
    found = kinds.KINDS[kind]
    allowed = verbs(of_kind(render(), "ClusterRole")["legato"], found.api_version.rpartition("/")[0], found.plural)
    assert allowed >= {"get", "list", "watch"}
    assert kind == ownership.REPLICA_SET or "patch" in allowed
    if kind in common.OWNED_KINDS:
        assert allowed >= {"create", "delete"}


def test_network_policies_of_services_let_the_operator_in():
    labels = of_kind(render(), "Deployment")["legato"]["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == "legato-operator"
    policy = of_kind(render(), "NetworkPolicy")["legato"]["spec"]
    ports = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    assert ports == {53, 443, 6443, names.WORKER_CONTROL_PORT, names.CONTROL_TLS_PORT}


def test_monitors_are_made_where_wanted_and_possible():
    wanted = ("--set", MONITORS)
    made = {"PodMonitor", "PrometheusRule"}
    assert made & {item["kind"] for item in render(*wanted)} == set()
    assert made & {item["kind"] for item in render(*PROMETHEUS)} == set()
    objects = render(*wanted, *PROMETHEUS)
    assert made & {item["kind"] for item in objects} == made
    (rule,) = of_kind(objects, "PrometheusRule").values()
    groups = {group["name"]: group["rules"] for group in rule["spec"]["groups"]}
    assert groups.keys() == {"legato-operator", "legato-serving", "legato-scaling", "legato-external"}
    written = {group["name"]: group["rules"] for file in RULES for group in yaml.safe_load(file.read_text())["groups"]}
    assert {name: groups[name] for name in written} == written


def test_metrics_have_the_labels_that_alerts_join_by():
    """The operator's own `namespace` is that of the service it tells of."""
    monitors = of_kind(render("--set", "monitoring.podMonitor.enabled=true", *PROMETHEUS), "PodMonitor")
    (operator,) = monitors["legato"]["spec"]["podMetricsEndpoints"]
    (services,) = monitors["legato-services"]["spec"]["podMetricsEndpoints"]
    assert operator["honorLabels"]
    assert {each["targetLabel"]: each["sourceLabels"] for each in services["relabelings"]} == {
        "service": [f"__meta_kubernetes_pod_label_{re.sub('[./-]', '_', names.LABEL_SERVICE)}"],
        "role": [f"__meta_kubernetes_pod_label_{re.sub('[./-]', '_', names.LABEL_ROLE)}"],
    }


def test_dashboards_reach_grafana_as_they_are():
    assert of_kind(render(), "ConfigMap") == {}
    values = "monitoring.dashboards.enabled=true,monitoring.dashboards.annotations.grafana_folder=Legato"
    made = of_kind(render("--set", values), "ConfigMap")
    assert made.keys() == {"legato-dashboard-scaling", "legato-dashboard-serving"}
    for item in made.values():
        assert item["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert item["metadata"]["annotations"] == {"grafana_folder": "Legato"}
        ((file, text),) = item["data"].items()
        assert json.loads(text) == json.loads((CHART / "files" / "dashboards" / file).read_text())


@pytest.mark.parametrize(("given", "port"), [({}, 80), ({"port": 443}, 443)])
def test_ways_in_from_outside(given, port):
    """A service with TLS has port 443 alone."""
    values = {
        "ingresses": [{"service": "a", "namespace": "n", "hosts": ["a.example.com"], "tlsSecret": "t", **given}],
        "httpRoutes": [{"service": "b", "hostnames": ["b.example.com"], "parentRefs": [{"name": "front"}], **given}],
        "priorityClasses": [{"name": "high", "value": 1_000_000}],
    }
    objects = render("--set-json", ",".join(f"{key}={json.dumps(value)}" for key, value in values.items()))
    ingress = of_kind(objects, "Ingress")["a"]
    (path,) = ingress["spec"]["rules"][0]["http"]["paths"]
    assert ingress["metadata"]["namespace"] == "n"
    assert path["backend"]["service"] == {"name": "a", "port": {"number": port}}
    assert ingress["spec"]["tls"] == [{"secretName": "t", "hosts": ["a.example.com"]}]
    route = of_kind(objects, "HTTPRoute")["b"]
    assert route["spec"]["rules"][0]["backendRefs"] == [{"name": "b", "port": port}]
    assert of_kind(objects, "PriorityClass")["high"]["value"] == 1_000_000


@pytest.mark.parametrize("scope", [(), NAMESPACED])
def test_the_right_to_make_routes_can_be_left_out(scope):
    for given, allowed in (((), {"get", "list", "create", "patch", "delete"}), (("--set", "rbac.routes=false"), set())):
        roles = [item for item in render(*scope, *given) if item["metadata"]["name"] == "legato" and "rules" in item]
        assert roles
        for role in roles:
            assert verbs(role, "networking.k8s.io", "ingresses") == allowed
            assert verbs(role, "gateway.networking.k8s.io", "httproutes") == allowed


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("operator.replica=2", "replica"),
        ("operator.replicas=-1", "replicas"),
        ("operator.httpPort=80", "httpPort"),
        ("images.pullPolicy=Sometimes", "pullPolicy"),
        ("images.engine.digest=sha256:abc", "digest"),
        ("images.operator.repository=", "repository"),
        ("watchNamespaces={Models}", "watchNamespaces"),
        ("watchNamespaces=models", "watchNamespaces"),
        ("gpuResources={gpu}", "gpuResources"),
        ("gpuResources={}", "gpuResources"),
        ("tracingEndpoint=collector:4318", "tracingEndpoint"),
        ("upgrade.services=-1", "services"),
        ("upgrade.pause=60", "pause"),
        ("tokenLifetimeDays=-1", "tokenLifetimeDays"),
        ("networkPolicy.apiServerPorts={}", "apiServerPorts"),
        ("ingresses[0].service=a", "hosts"),
        ("httpRoutes[0].service=a", "parentRefs"),
        ("ingresses[0].service=a,ingresses[0].hosts={a},ingresses[0].port=8080", "port"),
        ("priorityClasses[0].name=a", "value"),
        ("test.timeoutSeconds=0", "timeoutSeconds"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(value, name):
    done = helm("template", "legato", str(CHART), "--set", value)
    assert done.returncode != 0
    assert name in done.stderr


def _paths(schema: Object, values: Any, path: str = "") -> list[str]:
    """Properties of a schema that values lack. Lists and free-form objects are not looked into."""
    missing = []
    definitions = json.loads((CHART / "values.schema.json").read_text())["definitions"]
    for key, found in schema.get("properties", {}).items():
        inner = definitions[found["$ref"].rpartition("/")[2]] if "$ref" in found else found
        if key not in values:
            missing.append(f"{path}{key}")
        elif inner.get("type") == "object":
            missing += _paths(inner, values[key], f"{path}{key}.")
    return missing


def test_every_value_that_is_allowed_is_shown():
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert _paths(schema, yaml.safe_load((CHART / "values.yaml").read_text())) == ["global"]


@pytest.mark.parametrize("scope", [(), NAMESPACED])
def test_what_guards_the_end_of_a_release_sees_the_namespaces_of_its_operator(scope):
    """The pod runs the operator's image as its account, with its flags, and is none of its replicas."""
    objects = render(*scope, "--set", "images.pullSecrets={pull}")
    pod = of_kind(objects, "Pod")["legato-check-no-services"]
    operator = of_kind(objects, "Deployment")["legato"]["spec"]
    (check,), (serves,) = pod["spec"]["containers"], operator["template"]["spec"]["containers"]
    assert check["args"] == [serves["args"][0], "--check-no-services", *serves["args"][1:]]
    assert check["image"] == serves["image"]
    assert check["securityContext"] == serves["securityContext"]
    for field in ("serviceAccountName", "imagePullSecrets", "securityContext", "tolerations"):
        assert pod["spec"][field] == operator["template"]["spec"][field]
    assert pod["spec"]["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    assert not operator["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert "legato-check-no-services" not in of_kind(render("--set", "uninstall.guard=false"), "Pod")
