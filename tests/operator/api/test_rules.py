"""Every rule refuses a spec that breaks it and accepts the nearest one that keeps it, in Python and in CEL alike."""

import pytest

from legato_operator.api import parsing, pool_sizes, rules
from legato_operator.api.pool_sizes import RATIOS
from legato_operator.api.rules.unavailable import EVERYWHERE, IN_PODS
from legato_operator.errors import ManifestError
from legato_operator.planning import checks

SERVICES = "/apis/serving.legato.dev/v1alpha1/namespaces/default/inferenceservices?fieldValidation=Strict&dryRun=All"
BUILTIN = {"builtin": "smollm2-135m-instruct"}
GPU = "nvidia.com/gpu"
PACED = {"engine": {"runner": "Paced", "profile": "h200-llama-3.1-8b-bf16"}}  # on any device


def _fixed(prefill=1, decode=1):
    given = {"prefill": prefill, "decode": decode}
    pools = {role: {"replicas": count} for role, count in given.items() if count is not None}
    return {"scaling": {"mode": "Fixed"}, **pools}


def _resources(part, **resources):
    """Resources of a pool, of the gateway or of the hub's download."""
    return _hub(resources=resources) if part == "model.source.huggingFace" else {part: {"resources": resources}}


def _source(**source):
    return {"model": {"source": source}}


def _hub(**fields):
    return _source(huggingFace={"repo": "a/b", "revision": "0" * 40, **fields})


def _claim(path):
    return {"claim": "a.b", "path": path}


def _volumes(*volumes):
    return _model(adapterVolumes=list(volumes))


def _rollout(surge, unavailable, **more):
    return {"rollout": {"maxSurge": surge, "maxUnavailable": unavailable, **more}}


def _model(**fields):
    return {"model": {"source": BUILTIN, **fields}}


def _adapters(*sources, names="ab", model=None, **fields):
    adapters = [{"name": name, "source": each, **fields} for name, each in zip(names, sources, strict=False)]
    return _model(adapters=adapters, **model or {})


def _gateway(**fields):
    return {"gateway": fields}


def _engine(**fields):
    return {"engine": fields}


def _disk(path):
    return _engine(diskKV=DISK_KV | {"path": path}, hostKVMemory="1Gi")


def _drafts(engine=None, **source):
    return _engine(speculation={"method": "Draft", "model": source}, **engine or {})


def _bounds(prefill, decode, **more):
    return {"scaling": {"prefill": prefill, "decode": decode}, **more}


def _budget(budget):
    pools = _resources("prefill", requests={GPU: 2}) | _resources("decode", limits={GPU: 1})
    return {"scaling": {"gpuBudget": budget, "decode": {"min": 2}}, **pools, **PACED}


def _transfer(**fields):
    return {"transfer": fields}


def _rdma(transport="RDMA", **more):
    return _transfer(transport=transport, rdma={"resource": "rdma/ib"} | more)


def _huge_pages(*with_cpus, **pages):
    """Huge pages, and CPUs for workers of these roles."""
    pools = [_resources(role, requests={"cpu": 1}) for role in with_cpus]
    return _rdma(hugePages={"memory": "4Mi"} | pages) | {role: pool for each in pools for role, pool in each.items()}


def _ratio(role, least):
    """At most three workers of the other role, and two of this one for each."""
    return {"scaling": {role: {"min": least, "max": 9}, pool_sizes.other(role): {"max": 3}, RATIOS[role]: 2}}


def _of_role(role):
    replicas, bounds = f"{role}.replicas", f"scaling.{role}"
    of_rdma, others = {"rdma/ib": 1}, {"rdma/other": 1, "hugepages-2Mi": "4Mi"}
    return {
        (replicas, "required with"): (_fixed(**{role: None}), _fixed()),
        (replicas, "only allowed with"): ({role: {"replicas": 1}}, {}),
        (bounds, "not allowed with"): (_fixed() | {"scaling": {"mode": "Fixed", role: ONE | {"max": 1}}}, _fixed()),
        (bounds, "min must"): ({"scaling": {role: {"min": 3, "max": 2}}}, {"scaling": {role: {"min": 2, "max": 2}}}),
        (f"scaling.{RATIOS[role]}", "cannot be kept"): (_ratio(role, 7), _ratio(role, 6)),
        (f"{role}.resources", "must not name what transfer.rdma"): (
            _rdma() | _resources(role, limits=of_rdma),
            _rdma() | _resources(role, limits=others),
        ),
        (f"{role}.resources", "need cpu or memory"): (_huge_pages(pool_sizes.other(role)), _huge_pages(*RATIOS)),
    }


def _of_resources(part):
    def given(**resources):
        return _resources(part, **resources) | PACED

    here = f"{part}.resources"
    names = {"intel.com/qat_A-1.b": 1, "hugepages-2Mi": "4Mi", "ephemeral-storage": 1}
    return {
        (f"{here}.limits", "must not be below"): (
            given(requests={"memory": "4Gi"}, limits={"memory": "4095Mi"}),
            given(requests={"memory": "4Gi"}, limits={"memory": "4096Mi", "cpu": 1}),
        ),
        (f"{here}.limits", "of devices"): (
            given(requests={GPU: 1}, limits={GPU: 2}),
            given(requests={GPU: 2}, limits={GPU: "2000m"}),
        ),
        (f"{here}.requests", "names must"): (given(requests={"intel.com": 1}), given(requests=names)),
        (f"{here}.limits", "names must"): (given(limits={"intel.com": 1}), given(limits=names)),
        (f"{here}.requests", GPU): (given(requests={GPU: "500m"}), given(requests={GPU: "2"})),
        (f"{here}.limits", GPU): (given(limits={GPU: "1500m"}), given(limits={GPU: "2000m"})),
        (f"{here}.requests", "cpu must"): (given(requests={"cpu": "1024001m"}), given(requests={"cpu": 1024})),
        (f"{here}.requests", "memory must"): (given(requests={"memory": "512m"}), given(requests={"memory": "1Mi"})),
        (f"{here}.limits", "memory must"): (given(limits={"memory": 1048575}), given(limits={"memory": 1048576})),
    }


def _of_hosts(part, field, **beside):
    def given(*hosts, **annotations):
        return _gateway(**{part: {**beside, field: list(hosts), **annotations}})

    here = f"gateway.{part}"
    return {
        (f"{here}.{field}", "must be names"): (given("192.0.2.1"), given("192.0.2.x")),
        (f"{here}.{field}", "must not name"): (given("a.example", "a.example"), given("a.example", "*.a.example")),
        (f"{here}.annotations", "must not be"): (
            given("a", annotations={"serving.legato.dev/applied-hash": "x"}),
            given("a", annotations={"nginx.ingress.kubernetes.io/proxy-buffering": "off"}),
        ),
    }


EMPTY, ONE = {"min": 0}, {"min": 1}
DISK_KV = {"path": "/kv", "size": "1Gi"}
PATH, CLAIM, SECRET = {"path": "/a"}, {"pvc": {"claim": "c"}}, {"secret": "a"}
QUOTAS, WAIT = {"*": 1, "a": 1}, {"routing": {"whenPrefillUnavailable": "Wait"}}
# (field to blame, how the message begins): (a spec that breaks only this rule, the nearest one that keeps it)
CASES = {
    ("model.source", "exactly one"): (_source(**BUILTIN, path="/m"), _source(path="/m")),
    ("model.source.path", "must not contain"): (_source(path="/a/../b"), _source(path="/a/..b/c...")),
    ("model.source.pvc.path", "must not contain"): (_source(pvc=_claim("../b")), _source(pvc=_claim("..b/.c"))),
    ("model.source.huggingFace.nodeCache", "must not contain"): (_hub(nodeCache="/a/.."), _hub(nodeCache="/a/...")),
    ("model.adapters", "exactly one"): (_adapters(PATH, {}), _adapters(PATH, {"image": "b"})),
    ("model.adapters", "paths must not"): (_adapters({"path": "/a/../b"}, CLAIM), _adapters({"path": "/a/..b"}, CLAIM)),
    ("model.adapters", "maxRank must"): (_adapters(PATH, maxRank=65), _adapters(PATH, CLAIM, maxRank=64)),
    ("model.adapters", "names must differ from one"): (
        _adapters(PATH, CLAIM, names="aa"),
        _adapters(PATH, CLAIM, names="aA"),
    ),
    ("model.adapters", "names must differ from metadata.name"): (
        _adapters(PATH, names=["demo"]),
        _adapters(PATH, names=["demo"], model={"servedName": "base"}),
    ),
    ("model.adapterVolumes", "exactly one"): (_volumes(PATH, PATH | {"claim": "b"}), _volumes(PATH, {"claim": "b"})),
    ("model.adapterVolumes", "paths must not"): (_volumes({"path": "/a/.."}), _volumes({"path": "/a/..b"})),
    ("engine.hostKVMemory", "required"): (_engine(diskKV=DISK_KV), _engine(diskKV=DISK_KV, hostKVMemory="1Gi")),
    ("engine.diskKV.path", "must not contain"): (_disk("/kv/../a"), _disk("/kv/..a")),
    ("engine.diskKV.path", "must be a folder below"): (_disk("//./"), _disk("/.a")),
    ("engine.profile", "required"): (_engine(runner="Paced"), PACED),
    ("engine.profile", "only allowed"): (_engine(profile="/profiles/own.json"), {}),
    ("engine.hangTimeout", "must be from"): (_engine(hangTimeout="2999ms"), _engine(hangTimeout="3s")),
    ("engine.chunkTokens", "must"): (_engine(chunkTokens=31, blockSize=32), _engine(chunkTokens=32, blockSize=32)),
    ("engine.numerics", "Invariant"): (_engine(numerics="Invariant"), _engine(numerics="Fast")),
    ("engine.speculation.model", "exactly one of"): (
        _drafts(path="/a", builtin="smollm2-135m-instruct"),
        _drafts(path="/a"),
    ),
    ("engine.speculation.model.path", "must not contain"): (_drafts(path="/a/../b"), _drafts(path="/a/..b")),
    ("engine.speculation.model.pvc.path", "must not contain"): (_drafts(pvc=_claim("..")), _drafts(pvc=_claim("a"))),
    ("engine.speculation.model.path", "must be absolute"): (_drafts(path="a"), _drafts(path="/a")),
    ("engine.speculation.model", "required with method Draft"): (
        _engine(speculation={"method": "Draft"}),
        _engine(speculation={"method": "PromptLookup"}),
    ),
    ("engine.speculation.method", "Draft needs runner"): (_drafts(PACED["engine"], path="/a"), _drafts(path="/a")),
    ("engine.kvCacheDtype", "must be Auto, FP8 or"): (
        _engine(dtype="BFloat16", kvCacheDtype="Float32"),
        _engine(dtype="Float32", kvCacheDtype="BFloat16"),
    ),
    ("model.source.path", "must be absolute"): (_source(path="models/a"), _source(path="/models/a")),
    ("model.adapters", "paths of"): (_adapters({"path": "a"}, CLAIM), _adapters(PATH, CLAIM)),
    ("transfer.transport", "SharedMemory"): (_transfer(transport="SharedMemory"), _transfer(transport="TCP")),
    **{
        (f"gateway.{part}.path", "only available"): (_gateway(**{part: PATH}), _gateway(**{part: SECRET}))
        for part in ("apiKeys", "tls")
    },
    ("gateway.apiKeys", "exactly one"): (_gateway(apiKeys=SECRET | PATH), _gateway(apiKeys=SECRET)),
    ("gateway.tls", "exactly one"): (_gateway(tls=SECRET | PATH), _gateway(tls=SECRET)),
    **_of_hosts("httpRoute", "hostnames", parentRefs=[{"name": "public"}]),
    **_of_hosts("ingress", "hosts"),
    ("gateway.limits.maxPendingBodiesSize", "must be at least twice maxBodySize"): (
        _gateway(limits={"maxBodySize": "48.1Mi"}),
        _gateway(limits={"maxBodySize": "64Mi", "maxPendingBodiesSize": "128Mi"}),
    ),
    ("gateway.responseStore", "only"): (_gateway(responseStore={}, replicas=2), _gateway(responseStore={})),
    ("gateway.tenantTokensPerMinute", "needs apiKeys"): (
        _gateway(tenantTokensPerMinute=QUOTAS),
        _gateway(tenantTokensPerMinute=QUOTAS, trustedProxies=["10.0.0.0/8"]),
    ),
    ("gateway.tenantMaxOutputTokens", "needs apiKeys"): (
        _gateway(tenantMaxOutputTokens=QUOTAS),
        _gateway(tenantMaxOutputTokens=QUOTAS, trustedProxies=["10.0.0.0/8"]),
    ),
    ("transfer.nodeMemory", "On needs checksum"): (
        _transfer(nodeMemory="On", checksum=False),
        _transfer(nodeMemory="On"),
    ),
    ("transfer.nodeMemory", "On is not allowed with rdma"): (
        {"transfer": _rdma(sharedMemory="1Gi")["transfer"] | {"nodeMemory": "On"}},
        {"transfer": _rdma()["transfer"] | {"nodeMemory": "On"}},
    ),
    ("transfer.required", "only allowed with"): (_transfer(required=True), _transfer(required=True, transport="TCP")),
    ("transfer.rdma", "only allowed with transport"): (_rdma(transport="TCP"), _rdma(transport="Auto")),
    ("transfer.rdma.hugePages.memory", "must be a multiple"): (
        _huge_pages(*RATIOS, pageSize="1Gi", memory="1.5Gi"),
        _huge_pages(*RATIOS, memory="1.5Gi"),
    ),
    ("rollout", "maxSurge and"): (_rollout(0, 0), _rollout(0, 1)),
    ("rollout.maxSurge", "must not be 0"): (_rollout("0%", 1, canary={}), _rollout("1%", 1, canary={})),
    ("scaling.decode.max", "must be"): (_bounds(EMPTY, EMPTY | {"max": 0}), _bounds(EMPTY, EMPTY | {"max": 1})),
    ("scaling.decode.min", "can be 0 only"): (_bounds(ONE, EMPTY), _bounds(EMPTY, EMPTY)),
    ("scaling.prefill.min", "can be 0 only"): (_bounds(EMPTY, ONE, **WAIT), _bounds(EMPTY, ONE)),
    ("decode.replicas", "must be at least 1"): (_fixed(decode=0), _fixed(decode=1)),
    ("scaling.gpuBudget", "must be at least"): (_budget(3), _budget(4)),
    **_of_role("prefill"),
    **_of_role("decode"),
    **_of_resources("prefill"),
    **_of_resources("decode"),
    **_of_resources("gateway"),
    **_of_resources("model.source.huggingFace"),
}


def _case(rule):
    given = rule.path.removeprefix("spec."), rule.message
    (case,) = [case for (path, start), case in CASES.items() if path == given[0] and given[1].startswith(start)]
    return case


def _problems(item):
    try:
        spec = parsing.read_service(item).spec
    except ManifestError as error:
        return list(error.problems)
    return [*checks.unavailable(spec, in_containers=True), *checks.contradictions(spec, (GPU,), machine_gpus=None)]


@pytest.fixture(params=["operator", "API server"])
def problems(request, build):
    """Fields to blame for a spec, each with a message: by the operator, or by a real API server with the CRDs."""

    def of_api_server(spec):
        status, answer = api_server.call("POST", SERVICES, build(**spec))
        if status == 201:
            assert parsing.service_from_object(answer).spec == parsing.read_service(build(**spec)).spec
            return []
        assert status == 422, answer
        return [(cause["field"], cause["message"]) for cause in answer["details"]["causes"]]

    if request.param == "operator":
        return lambda spec: _problems(build(**spec))
    api_server = request.getfixturevalue("api_server")
    return of_api_server


@pytest.mark.parametrize("rule", [*rules.RULES, *EVERYWHERE, *IN_PODS], ids=lambda rule: f"{rule.path}: {rule.message}")
def test_rule_refuses_what_breaks_it_and_nothing_more(request, problems, rule):
    """By the same words, with the same field to blame."""
    if "API server" in request.node.callspec.params.values() and not rule.cel:
        pytest.skip("only the operator can decide")
    breaks, keeps = _case(rule)
    ((path, message),) = problems(breaks)
    assert path == rule.path
    assert rule.message in message
    assert problems(keeps) == []


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (_resources("decode", requests={"cpu": "0"}), "cpu must be greater than 0"),
        (_resources("decode", requests={"cpu": "1m"}), ""),
        ({"drain": {"deadline": "0.9ms"}}, "1ms to 168h"),
        ({"drain": {"deadline": "1ms"}}, ""),
        ({"drain": {"deadline": "168h"}}, ""),
        ({"drain": {"deadline": "168h1ms"}}, "1ms to 168h"),
        (_rollout("0%", 0), "must not both be 0"),
        (_rollout(0, "0%"), "must not both be 0"),
        (_rollout("0%", "1%"), ""),
        (_engine(kvCacheMemory="1Pi"), ""),
        (_engine(kvCacheMemory="Auto"), ""),
        (_engine(kvCacheMemory="1025Ti"), "1Mi to 1Pi"),
        (_engine(kvCacheMemory="1Mi"), ""),
        (_engine(kvCacheMemory="1023.9Ki"), "1Mi to 1Pi"),
        (_engine(kvCacheMemory="10000000.5"), ""),
        (_engine(kvCacheMemory="0.5Gi"), ""),
        (_gateway(tenantTokensPerMinute={"*": 6000}), ""),
        ({"drain": {"deadline": "30s1m"}, "slo": {"tpot": "1ms"}}, ""),
        (_rollout("25%", "100%"), ""),
        (_rollout(10_000, "0%"), ""),
        *((_source(image=name), "") for name in ("models", "registry.example:5000/team/a-b__c.d:v1.2_x", "Host/a")),
        *((_source(image=f"a{tag}@sha256:" + digit * 64), "") for tag, digit in (("/b", "0"), (":1", "f"))),
    ],
)
def test_values_at_the_end_of_a_range_are_accepted_and_mean_the_same_on_the_server(problems, spec, expected):
    messages = [message for _, message in problems(spec)]
    assert len(messages) == bool(expected)
    assert all(expected in message for message in messages)


def _pages(kind, size):
    """Huge pages of two MiB by the transfer, and of this size by the workers themselves."""
    mine = _resources("decode", **{kind: {f"hugepages-{size}": "4Mi", "cpu": 1}})
    return _huge_pages("prefill") | mine


def _gpus(prefill, decode, *, kind="limits", ranks=(1, 1), **more):
    given = {"prefill": (prefill, ranks[0]), "decode": (decode, ranks[1])}
    resources = {role: {"resources": {kind: {GPU: n}}} if n is not None else {} for role, (n, _) in given.items()}
    return {role: resources[role] | {"parallelism": {"tensor": degree}} for role, (_, degree) in given.items()} | more


RANKS = {  # of prefill and of decode workers, which request one GPU and two
    (1, 2): [],
    (1, 4): ["spec.decode.resources"],
    (2, 2): ["spec.prefill.resources"],
    (1, 1): ["spec.decode.resources"],
}


@pytest.mark.parametrize(
    ("spec", "blamed"),
    [
        # Fixed sizes keep the ratio; a service without a prefill pool has none.
        (_fixed(1, 5), ["spec.scaling.maxDecodePerPrefill"]),
        (_fixed(1, 4), []),
        (_fixed(0, 5), []),
        (_fixed(5, 1), ["spec.scaling.maxPrefillPerDecode"]),
        # Bounds that are left out keep it, too.
        ({"scaling": {"decode": {"max": 9}}}, []),
        (_bounds({"max": 0}, {"min": 9, "max": 9}), []),
        (_bounds({"max": 0}, EMPTY), []),
        # Huge pages of one size are requested in one place.
        *((_pages(kind, "2Mi"), ["spec.decode.resources"]) for kind in ("requests", "limits")),
        *((_pages(kind, "1Gi"), []) for kind in ("requests", "limits")),
        # CPUs and GPUs compute different things, and hand nothing over to one another.
        *((_gpus(1, None, kind=kind), ["spec.decode.resources"]) for kind in ("requests", "limits")),
        *((_gpus(None, count), ["spec.prefill.resources"]) for count in (1, "1", "1000m")),
        *((spec, []) for spec in (_gpus(1, 1), _gpus(0, 0), _gpus(None, 1, scaling={"prefill": {"max": 0}}))),
        (_gpus(None, 1, **PACED), []),
        # Each rank computes on one GPU; ranks of pools without GPUs compute on CPUs.
        *((_gpus(1, 2, ranks=ranks), blamed) for ranks, blamed in RANKS.items()),
        (_gpus(1, 2, kind="requests", ranks=(1, 2)), []),
        (_gpus(1, 2, kind="requests", ranks=(1, 4)), ["spec.decode.resources"]),
        (_gpus(None, None, ranks=(2, 8)), []),
        (_gpus(1, 2, ranks=(1, 4), **PACED), []),
        (_engine(dtype="Float16"), ["spec.engine.dtype"]),
        *((_gpus(1, 1, **_engine(dtype=each)), []) for each in ("Float16", "BFloat16")),
        (_gpus(1, 1, **_engine(dtype="Float32")), ["spec.engine.dtype"]),
        (_gpus(0, 0, **_engine(dtype="Float32", kvCacheDtype="BFloat16", blockSize=8)), []),
        (_gpus(1, 1, **_engine(kvCacheDtype="Float32")), ["spec.engine.kvCacheDtype"]),
        (_gpus(1, 1, **_engine(dtype="Float16", kvCacheDtype="BFloat16")), ["spec.engine.kvCacheDtype"]),
        (_gpus(1, 1, **_engine(kvCacheDtype="BFloat16")), []),
        (_gpus(1, 1, **_engine(dtype="Float16", kvCacheDtype="FP8")), []),
        *((_gpus(1, 1, **_engine(blockSize=each)), ["spec.engine.blockSize"]) for each in (8, 128)),
        (_gpus(1, 1, **_engine(blockSize=64)), []),
        (_transfer(rdma={"resource": GPU}), ["spec.transfer.rdma.resource"]),
    ],
)
def test_contradiction_is_blamed_on_one_field(problems, spec, blamed):
    assert [path for path, _ in problems(spec)] == blamed


BEYOND_BUDGET = "must be at least the number of GPUs of the smallest pools: "


def _beyond_ratio(decode, ratio, prefill):
    return (
        "cannot be kept: the minimum of decode exceeds the ratio to the other pool's maximum: "
        f"{decode} decode workers at least > maxDecodePerPrefill {ratio} × {prefill} prefill workers at most"
    )


@pytest.mark.parametrize(
    ("breaks", "path", "message"),
    [
        (_budget(3), "gpuBudget", f"{BEYOND_BUDGET}decode 2 × 1 + prefill 1 × 2 = 4 > 3"),
        (  # decode's minimum needs two prefill workers
            _budget(8) | {"scaling": {"gpuBudget": 8, "decode": {"min": 5, "max": 5}}},
            "gpuBudget",
            f"{BEYOND_BUDGET}decode 5 × 1 + prefill 2 × 2 = 9 > 8",
        ),
        (_ratio("decode", 7), "maxDecodePerPrefill", _beyond_ratio(7, 2, 3)),
        (_fixed(1, 5), "maxDecodePerPrefill", _beyond_ratio(5, 4, 1)),
        (
            {"scaling": {"decode": EMPTY}},
            "decode.min",
            "can be 0 only if prefill.min is 0, too: decode 0, prefill 1: prefill workers need a decode worker",
        ),
    ],
)
def test_sizes_that_contradict_each_other_are_refused_with_the_arithmetic(build, breaks, path, message):
    assert _problems(build(**breaks)) == [(f"spec.scaling.{path}", message)]
