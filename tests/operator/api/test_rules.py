"""Every rule refuses a spec that breaks it and accepts the nearest one that keeps it, in Python and in CEL alike."""

import pytest

from legato_operator.api import parsing, pool_sizes, rules
from legato_operator.api.pool_sizes import RATIOS
from legato_operator.errors import ManifestError

SERVICES = "/apis/serving.legato.dev/v1alpha1/namespaces/default/inferenceservices?fieldValidation=Strict&dryRun=All"
BUILTIN = {"builtin": "smollm2-135m-instruct"}
GPU = "nvidia.com/gpu"
HUB = {"repo": "a/b", "revision": "0" * 40}


def _fixed(prefill=1, decode=1):
    given = {"prefill": prefill, "decode": decode}
    pools = {role: {"replicas": count} for role, count in given.items() if count is not None}
    return {"scaling": {"mode": "Fixed"}, **pools}


def _resources(role, kind, **amounts):
    return _given(role, {kind: amounts})


def _given(part, resources):
    """Resources of a pool, of the gateway or of the hub's download."""
    if part == "model.source.huggingFace":
        return {"model": {"source": {"huggingFace": HUB | {"resources": resources}}}}
    return {part: {"resources": resources}}


def _adapters(*adapters):
    return {"model": {"source": BUILTIN, "adapters": list(adapters)}}


def _budget(budget):
    pools = _resources("prefill", "requests", **{GPU: 2}) | _resources("decode", "limits", **{GPU: 1})
    return {"scaling": {"gpuBudget": budget, "decode": {"min": 2}}, **pools}


def _rdma(**more):
    return {"transfer": {"transport": "RDMA", "rdma": {"resource": "rdma/ib"} | more}}


def _bounds(role, least):
    """At most three workers of the other role, and two of this one for each."""
    ratio = {RATIOS[role]: 2}
    return {"scaling": {role: {"min": least, "max": 9}, pool_sizes.other(role): {"max": 3}, **ratio}}


def _of_role(role):
    replicas = f"spec.{role}.replicas"
    return {
        (replicas, "required with"): (_fixed(**{role: None}), _fixed()),
        (replicas, "only allowed with"): ({role: {"replicas": 1}}, {}),
        (f"spec.scaling.{role}", "not allowed with"): (
            _fixed() | {"scaling": {"mode": "Fixed", role: {"min": 1, "max": 1}}},
            _fixed(),
        ),
        (f"spec.scaling.{role}", "min must"): (
            {"scaling": {role: {"min": 3, "max": 2}}},
            {"scaling": {role: {"min": 2, "max": 2}}},
        ),
        (f"spec.scaling.{RATIOS[role]}", "cannot be kept"): (_bounds(role, 7), _bounds(role, 6)),
        (f"spec.{role}.resources", "must not name what transfer.rdma"): (
            _rdma() | _resources(role, "limits", **{"rdma/ib": 1}),
            _rdma() | _resources(role, "limits", **{"rdma/other": 1, "hugepages-2Mi": "4Mi"}),
        ),
    }


def _of_resources(role):
    here = f"spec.{role}.resources"
    return {
        (f"{here}.limits", "must not be below"): (
            _given(role, {"requests": {"memory": "4Gi"}, "limits": {"memory": "4095Mi"}}),
            _given(role, {"requests": {"memory": "4Gi"}, "limits": {"memory": "4096Mi", "cpu": 1}}),
        ),
        (f"{here}.limits", "of devices"): (
            _given(role, {"requests": {GPU: 1}, "limits": {GPU: 2}}),
            _given(role, {"requests": {GPU: 2}, "limits": {GPU: "2000m"}}),
        ),
        **{
            (f"{here}.{kind}", "names must"): (
                _resources(role, kind, **{"intel.com": 1}),
                _resources(role, kind, **{"intel.com/qat_A-1.b": 1, "hugepages-2Mi": "4Mi", "ephemeral-storage": 1}),
            )
            for kind in ("requests", "limits")
        },
        (f"{here}.requests", GPU): (
            _resources(role, "requests", **{GPU: "500m"}),
            _resources(role, "requests", **{GPU: "2"}),
        ),
        (f"{here}.limits", GPU): (
            _resources(role, "limits", **{GPU: "1500m"}),
            _resources(role, "limits", **{GPU: "2000m"}),
        ),
        (f"{here}.requests", "cpu must"): (
            _resources(role, "requests", cpu="1024001m"),
            _resources(role, "requests", cpu=1024),
        ),
    }


def _of_hosts(part, field, beside):
    def given(*hosts, **more):
        return {"gateway": {part: {**beside, field: list(hosts), **more}}}

    here = f"spec.gateway.{part}"
    return {
        (f"{here}.{field}", "must be names"): (given("192.0.2.1"), given("192.0.2.x")),
        (f"{here}.{field}", "must not name"): (given("a.example", "a.example"), given("a.example", "*.a.example")),
        (f"{here}.annotations", "must not be"): (
            given("a", annotations={"serving.legato.dev/applied-hash": "x"}),
            given("a", annotations={"nginx.ingress.kubernetes.io/proxy-buffering": "off"}),
        ),
    }


# (field to blame, how the message begins): (a spec that breaks this rule alone, the nearest one that keeps it)
CASES = {
    ("spec.model.source", "exactly one"): (
        {"model": {"source": {**BUILTIN, "path": "/m"}}},
        {"model": {"source": {"path": "/m"}}},
    ),
    ("spec.model.source.path", "must not contain"): (
        {"model": {"source": {"path": "/a/../b"}}},
        {"model": {"source": {"path": "/a/..b/c..."}}},
    ),
    ("spec.model.source.pvc.path", "must not contain"): (
        {"model": {"source": {"pvc": {"claim": "a.b", "path": "../b"}}}},
        {"model": {"source": {"pvc": {"claim": "a.b", "path": "..b/.c"}}}},
    ),
    ("spec.model.source.huggingFace.nodeCache", "must not contain"): (
        {"model": {"source": {"huggingFace": HUB | {"nodeCache": "/a/.."}}}},
        {"model": {"source": {"huggingFace": HUB | {"nodeCache": "/a/..."}}}},
    ),
    ("spec.model.adapters", "exactly one"): (
        _adapters({"name": "a", "source": {"path": "/a"}}, {"name": "b", "source": {}}),
        _adapters({"name": "a", "source": {"path": "/a"}}, {"name": "b", "source": {"image": "b"}}),
    ),
    ("spec.model.adapters", "paths must not"): (
        _adapters({"name": "a", "source": {"path": "/a/../b"}}, {"name": "b", "source": {"pvc": {"claim": "c"}}}),
        _adapters({"name": "a", "source": {"path": "/a/..b"}}, {"name": "b", "source": {"pvc": {"claim": "c"}}}),
    ),
    ("spec.model.adapters", "maxRank must"): (
        _adapters({"name": "a", "source": {"path": "/a"}, "maxRank": 65}),
        _adapters({"name": "a", "source": {"path": "/a"}, "maxRank": 64}, {"name": "b", "source": {"path": "/b"}}),
    ),
    ("spec.model.adapterVolumes", "exactly one"): (
        {"model": {"source": BUILTIN, "adapterVolumes": [{"path": "/a"}, {"path": "/b", "claim": "b"}]}},
        {"model": {"source": BUILTIN, "adapterVolumes": [{"path": "/a"}, {"claim": "b"}]}},
    ),
    ("spec.model.adapterVolumes", "paths must not"): (
        {"model": {"source": BUILTIN, "adapterVolumes": [{"path": "/a/.."}]}},
        {"model": {"source": BUILTIN, "adapterVolumes": [{"path": "/a/..b"}, {"claim": "b"}]}},
    ),
    ("spec.model.adapters", "names must differ"): (
        _adapters({"name": "a", "source": {"path": "/a"}}, {"name": "a", "source": {"path": "/b"}}),
        _adapters({"name": "a", "source": {"path": "/a"}}, {"name": "A", "source": {"path": "/b"}}),
    ),
    ("spec.engine.profile", "required"): (
        {"engine": {"runner": "Paced"}},
        {"engine": {"runner": "Paced", "profile": "h200-llama-3.1-8b-bf16"}},
    ),
    ("spec.engine.profile", "only allowed"): ({"engine": {"profile": "/profiles/own.json"}}, {}),
    ("spec.gateway.apiKeys", "exactly one"): (
        {"gateway": {"apiKeys": {"secret": "keys", "path": "/keys.json"}}},
        {"gateway": {"apiKeys": {"secret": "keys"}}},
    ),
    ("spec.gateway.tls", "exactly one"): (
        {"gateway": {"tls": {"secret": "certificate", "path": "/tls"}}},
        {"gateway": {"tls": {"secret": "certificate"}}},
    ),
    **_of_hosts("httpRoute", "hostnames", {"parentRefs": [{"name": "public"}]}),
    **_of_hosts("ingress", "hosts", {}),
    ("spec.gateway.responseStore", "only allowed with"): (
        {"gateway": {"responseStore": {}, "replicas": 2}},
        {"gateway": {"responseStore": {}, "replicas": 1}},
    ),
    ("spec.gateway.tenantTokensPerMinute", "needs apiKeys"): (
        {"gateway": {"tenantTokensPerMinute": {"*": 1, "a": 1}}},
        {"gateway": {"tenantTokensPerMinute": {"*": 1, "a": 1}, "trustedProxies": ["10.0.0.0/8"]}},
    ),
    ("spec.engine.hangTimeout", "must be from"): (
        {"engine": {"hangTimeout": "2999ms"}},
        {"engine": {"hangTimeout": "3s"}},
    ),
    ("spec.engine.chunkTokens", "must be at least"): (
        {"engine": {"chunkTokens": 31, "blockSize": 32}},
        {"engine": {"chunkTokens": 32, "blockSize": 32}},
    ),
    ("spec.transfer.required", "only allowed with"): (
        {"transfer": {"required": True}},
        {"transfer": {"required": True, "transport": "TCP"}},
    ),
    ("spec.rollout", "maxSurge and"): (
        {"rollout": {"maxSurge": 0, "maxUnavailable": 0}},
        {"rollout": {"maxSurge": 0, "maxUnavailable": 1}},
    ),
    ("spec.scaling.decode.max", "must be at least 1"): (
        {"scaling": {"prefill": {"min": 0}, "decode": {"min": 0, "max": 0}}},
        {"scaling": {"prefill": {"min": 0}, "decode": {"min": 0, "max": 1}}},
    ),
    ("spec.scaling.decode.min", "can be 0 only"): (
        {"scaling": {"prefill": {"min": 1}, "decode": {"min": 0}}},
        {"scaling": {"prefill": {"min": 0}, "decode": {"min": 0}}},
    ),
    ("spec.scaling.prefill.min", "can be 0 only"): (
        {"scaling": {"prefill": {"min": 0}}, "routing": {"whenPrefillUnavailable": "Wait"}},
        {"scaling": {"prefill": {"min": 0}}, "routing": {"whenPrefillUnavailable": "Local"}},
    ),
    ("spec.transfer.rdma", "only allowed with transport"): (
        {"transfer": {"transport": "TCP", "rdma": {"resource": "rdma/ib"}}},
        {"transfer": {"transport": "Auto", "rdma": {"resource": "rdma/ib"}}},
    ),
    ("spec.transfer.rdma.hugePages.memory", "must be a multiple"): (
        _rdma(hugePages={"pageSize": "1Gi", "memory": "1.5Gi"}),
        _rdma(hugePages={"memory": "1.5Gi"}),
    ),
    ("spec.decode.replicas", "must be at least 1"): (_fixed(decode=0), _fixed(decode=1)),
    ("spec.scaling.gpuBudget", "must be at least"): (_budget(3), _budget(4)),
    **_of_role("prefill"),
    **_of_role("decode"),
    **_of_resources("prefill"),
    **_of_resources("decode"),
    **_of_resources("gateway"),
    **_of_resources("model.source.huggingFace"),
}


def _case(rule):
    (found,) = [case for (path, start), case in CASES.items() if path == rule.path and rule.message.startswith(start)]
    return found


def _problems(item):
    try:
        parsing.read_service(item)
    except ManifestError as error:
        return list(error.problems)
    return []


each_rule = pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: f"{rule.path}: {rule.message}")


@each_rule
def test_python_refuses_what_breaks_a_rule_and_nothing_more(build, rule):
    breaks, keeps = _case(rule)
    ((path, message),) = _problems(build(**breaks))
    assert (path, message.startswith(rule.message)) == (rule.path, True)
    assert _problems(build(**keeps)) == []


@each_rule
def test_api_server_refuses_what_breaks_a_rule_and_nothing_more(api_server, build, rule):
    """By the same words, with the same field to blame."""
    if not rule.cel:
        pytest.skip("only the operator can decide")
    breaks, keeps = _case(rule)
    status, answer = api_server.call("POST", SERVICES, build(**breaks))
    assert status == 422, answer
    (cause,) = answer["details"]["causes"]
    assert cause["field"] == rule.path
    assert rule.message in cause["message"]
    status, answer = api_server.call("POST", SERVICES, build(**keeps))
    assert status == 201, answer


RANGES = [
    ({"decode": {"resources": {"requests": {"cpu": "0"}}}}, "cpu must be greater than 0"),
    ({"decode": {"resources": {"requests": {"cpu": "1m"}}}}, ""),
    ({"drain": {"deadline": "0.9ms"}}, "1ms to 168h"),
    ({"drain": {"deadline": "1ms"}}, ""),
    ({"drain": {"deadline": "168h"}}, ""),
    ({"drain": {"deadline": "168h1ms"}}, "1ms to 168h"),
    ({"rollout": {"maxSurge": "0%", "maxUnavailable": 0}}, "must not both be 0"),
    ({"rollout": {"maxSurge": 0, "maxUnavailable": "0%"}}, "must not both be 0"),
    ({"rollout": {"maxSurge": "0%", "maxUnavailable": "1%"}}, ""),
    ({"engine": {"kvCacheMemory": "1Pi"}}, ""),
    ({"engine": {"kvCacheMemory": "Auto"}}, ""),
    ({"engine": {"kvCacheMemory": "1025Ti"}}, "1Mi to 1Pi"),
    ({"engine": {"kvCacheMemory": "1Mi"}}, ""),
    ({"engine": {"kvCacheMemory": "1023.9Ki"}}, "1Mi to 1Pi"),
]


@pytest.mark.parametrize(("spec", "message"), RANGES)
def test_ranges_in_python(build, spec, message):
    found = [text for _, text in _problems(build(**spec))]
    assert len(found) == bool(message)
    assert all(message in text for text in found)


@pytest.mark.parametrize(("spec", "message"), RANGES)
def test_ranges_on_the_api_server(api_server, build, spec, message):
    status, answer = api_server.call("POST", SERVICES, build(**spec))
    assert status == (422 if message else 201), answer
    assert message in answer.get("message", "")


ARITHMETIC = {
    "3 GPUs are one too few": (
        _budget(3),
        "spec.scaling.gpuBudget",
        "must be at least the number of GPUs of the smallest pools: decode 2 × 1 + prefill 1 × 2 = 4 > 3",
    ),
    "decode's minimum needs two prefill workers": (
        _budget(8) | {"scaling": {"gpuBudget": 8, "decode": {"min": 5, "max": 5}}},
        "spec.scaling.gpuBudget",
        "must be at least the number of GPUs of the smallest pools: decode 5 × 1 + prefill 2 × 2 = 9 > 8",
    ),
    "bounds": (
        _bounds("decode", 7),
        "spec.scaling.maxDecodePerPrefill",
        "cannot be kept: the minimum of decode is more than it allows beside the other pool's maximum: "
        "7 decode workers at least > maxDecodePerPrefill 2 × 3 prefill workers at most",
    ),
    "nobody would decode": (
        {"scaling": {"decode": {"min": 0}}},
        "spec.scaling.decode.min",
        "can be 0 only if prefill.min is 0, too: decode 0 beside prefill 1, and prefill workers need one that decodes",
    ),
    "fixed": (
        _fixed(1, 5),
        "spec.scaling.maxDecodePerPrefill",
        "cannot be kept: the minimum of decode is more than it allows beside the other pool's maximum: "
        "5 decode workers at least > maxDecodePerPrefill 4 × 1 prefill workers at most",
    ),
}


@pytest.mark.parametrize(("breaks", "path", "message"), ARITHMETIC.values(), ids=ARITHMETIC)
def test_sizes_that_contradict_each_other_are_refused_with_the_arithmetic(build, breaks, path, message):
    assert _problems(build(**breaks)) == [(path, message)]


def _pages(kind, size):
    """Huge pages of two MiB by the transfer, and of this size by the workers themselves."""
    return _rdma(hugePages={"memory": "4Mi"}) | _resources("decode", kind, **{f"hugepages-{size}": "4Mi"})


@pytest.mark.parametrize(
    ("spec", "blamed"),
    [
        # Fixed sizes keep the ratio; a service without a prefill pool has none.
        (_fixed(1, 5), "spec.scaling.maxDecodePerPrefill"),
        (_fixed(1, 4), ""),
        (_fixed(0, 5), ""),
        (_fixed(5, 1), "spec.scaling.maxPrefillPerDecode"),
        # Bounds that are left out keep it, too.
        ({"scaling": {"decode": {"max": 9}}}, ""),
        ({"scaling": {"prefill": {"max": 0}, "decode": {"min": 9, "max": 9}}}, ""),
        ({"scaling": {"prefill": {"max": 0}, "decode": {"min": 0}}}, ""),
        # Huge pages of one size are asked for in one place.
        *((_pages(kind, "2Mi"), "spec.decode.resources") for kind in ("requests", "limits")),
        *((_pages(kind, "1Gi"), "") for kind in ("requests", "limits")),
    ],
)
def test_api_server_refuses_what_the_operator_does(api_server, build, spec, blamed):
    assert [path for path, _ in _problems(build(**spec))] == ([blamed] if blamed else [])
    status, answer = api_server.call("POST", SERVICES, build(**spec))
    assert status == (422 if blamed else 201), answer
