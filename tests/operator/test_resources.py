"""Manifests: defaults, what each value means, and that everything wrong is refused with its path."""

import copy

import pytest
import yaml

from legato_operator import resources
from legato_operator.errors import ManifestError


def _parse(item):
    return resources.parse(yaml.safe_dump(item))


def _refused(item):
    with pytest.raises(ManifestError) as caught:
        _parse(item)
    return caught.value.problems


def test_only_the_source_is_required(build):
    service = _parse(build())
    spec = service.spec
    assert service.served_name == "demo"
    assert service.metadata.namespace == "default"
    assert (spec.engine.kv_cache_memory, spec.engine.block_size, spec.engine.chunk_tokens) == (512 << 20, 16, 512)
    assert (spec.gateway.default_deadline, spec.drain.deadline, spec.slo.ttft, spec.slo.tpot) == (600, 120, 1, 0.1)
    assert (spec.scaling.prefill.min, spec.scaling.prefill.max) == (1, 4)
    assert spec.disaggregated


def test_numerics_invariant_is_a_valid_manifest(build):
    assert _parse(build(engine={"numerics": "Invariant"})).spec.engine.numerics == "Invariant"


@pytest.mark.parametrize(
    ("text", "seconds"), [("10m", 600), ("1s", 1), ("100ms", 0.1), ("1h30m", 5400), ("0.5s", 0.5), ("2m", 120)]
)
def test_durations(build, text, seconds):
    assert _parse(build(drain={"deadline": text})).spec.drain.deadline == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "size"), [("512Mi", 512 << 20), ("1Gi", 1 << 30), ("500M", 500_000_000), ("1.5Gi", 3 << 29), (1024, 1024)]
)
def test_memory(build, text, size):
    assert _parse(build(engine={"kvCacheMemory": text})).spec.engine.kv_cache_memory == size


@pytest.mark.parametrize(
    ("spec", "disaggregated"),
    [
        ({"scaling": {"prefill": {"max": 0}}}, False),
        ({"scaling": {"mode": "Fixed"}, "prefill": {"replicas": 0}, "decode": {"replicas": 2}}, False),
        ({"scaling": {"mode": "Fixed"}, "prefill": {"replicas": 1}, "decode": {"replicas": 2}}, True),
    ],
)
def test_no_prefill_means_one_pool(build, spec, disaggregated):
    assert _parse(build(**spec)).spec.disaggregated is disaggregated


FIXED = {"mode": "Fixed"}
SOURCE = {"source": {"builtin": "smollm2-135m-instruct"}}
WRONG = [
    ({"decode": {"replica": 2}}, "spec.decode.replica", "did you mean replicas?"),
    ({"engine": {"blocksize": 16}}, "spec.engine.blocksize", "did you mean blockSize?"),
    ({"engine": {"block_size": 16}}, "spec.engine.block_size", "did you mean blockSize?"),
    ({"prefil": {}}, "spec.prefil", "did you mean prefill?"),
    ({"gateway": {"zzz": 1}}, "spec.gateway.zzz", "known are defaultDeadline, replicas"),
    ({"scaling": {"prefill": {"maximum": 1}}}, "spec.scaling.prefill.maximum", "did you mean max?"),
    ({"engine": {"chunkTokens": "512"}}, "spec.engine.chunkTokens", "must be a whole number, not '512'"),
    ({"engine": {"chunkTokens": True}}, "spec.engine.chunkTokens", "must be a whole number, not true"),
    ({"engine": {"chunkTokens": 1.5}}, "spec.engine.chunkTokens", "must be a whole number"),
    ({"engine": {"blockSize": 24}}, "spec.engine.blockSize", "must be 8, 16, 32, 64 or 128, not 24"),
    ({"engine": {"chunkTokens": 16, "blockSize": 64}}, "spec.engine.chunkTokens", "at least blockSize, which is 64"),
    ({"engine": {"kvCacheMemory": "lots"}}, "spec.engine.kvCacheMemory", "'lots' is no quantity"),
    ({"engine": {"kvCacheMemory": "500m"}}, "spec.engine.kvCacheMemory", "is no amount of memory"),
    ({"engine": {"kvCacheMemory": "0"}}, "spec.engine.kvCacheMemory", "is no amount of memory"),
    ({"engine": {"dtype": "float32"}}, "spec.engine.dtype", "'Auto', 'BFloat16', 'Float16' or 'Float32'"),
    ({"engine": "fast"}, "spec.engine", "must be a mapping, not 'fast'"),
    ({"engine": None}, "spec.engine", "must be a mapping, not nothing"),
    ({"drain": {"deadline": 120}}, "spec.drain.deadline", "120 is no duration"),
    ({"drain": {"deadline": "2 minutes"}}, "spec.drain.deadline", "is no duration"),
    ({"drain": {"deadline": "0s"}}, "spec.drain.deadline", "from 1ms to 168h"),
    ({"drain": {"deadline": "0.00001ms"}}, "spec.drain.deadline", "from 1ms to 168h"),
    ({"gateway": {"defaultDeadline": "300h"}}, "spec.gateway.defaultDeadline", "from 1ms to 168h"),
    ({"engine": {"kvCacheMemory": "2000Ti"}}, "spec.engine.kvCacheMemory", "at most 1Pi"),
    ({"model": {**SOURCE, "servedName": "-x"}}, "spec.model.servedName", "does not match"),
    ({"model": {"source": {"path": "-x"}}}, "spec.model.source.path", "does not match"),
    ({"transfer": {"checksum": "yes"}}, "spec.transfer.checksum", "must be true or false, not 'yes'"),
    ({"transfer": {"required": True}}, "spec.transfer.required", "needs a transport other than Auto"),
    ({"transfer": {"transport": "Pigeon"}}, "spec.transfer.transport", "not 'Pigeon'"),
    ({"model": {}}, "spec.model.source", "required field is missing"),
    ({"model": {"source": {}}}, "spec.model.source", "found none of them"),
    ({"model": {"source": {"path": "a", "image": "b"}}}, "spec.model.source", "found path and image"),
    ({"model": {"source": {"builtin": "gpt-5"}}}, "spec.model.source.builtin", "smollm2-135m-instruct"),
    ({"model": {"source": {"path": ""}}}, "spec.model.source.path", "at least characters: 1"),
    (
        {"model": {"source": {"huggingFace": {"repo": "a/b", "revision": "main"}}}},
        "spec.model.source.huggingFace.revision",
        "does not match",
    ),
    ({"model": {**SOURCE, "maxLength": 0}}, "spec.model.maxLength", "at least 16"),
    ({"scaling": {"prefill": {"min": 3, "max": 2}}}, "spec.scaling.prefill", "min 3 is above max 2"),
    ({"scaling": {"decode": {"min": 0, "max": 0}}}, "spec.scaling.decode.max", "must be at least 1"),
    ({"scaling": {"decode": {"min": -1}}}, "spec.scaling.decode.min", "must be at least 0, not -1"),
    ({"scaling": {"mode": "Auto"}}, "spec.scaling.mode", "not 'Auto'"),
    ({"scaling": FIXED, "decode": {"replicas": 1}}, "spec.prefill.replicas", "required with scaling.mode Fixed"),
    (
        {"scaling": FIXED, "prefill": {"replicas": 1}, "decode": {"replicas": 0}},
        "spec.decode.replicas",
        "must be at least 1",
    ),
    (
        {"scaling": FIXED | {"decode": {"min": 1}}, "prefill": {"replicas": 1}, "decode": {"replicas": 1}},
        "spec.scaling.decode",
        "mean nothing with scaling.mode Fixed",
    ),
    ({"decode": {"replicas": 2}}, "spec.decode.replicas", "only with scaling.mode Fixed"),
    ({"rollout": {"maxSurge": 0}}, "spec.rollout", "cannot both be 0"),
    (
        {"decode": {"resources": {"requests": {"nvidia.com/gpu": "500m"}}}},
        "spec.decode.resources.requests.nvidia.com/gpu",
        "must be a whole number",
    ),
    (
        {"scaling": {"gpuBudget": 1}, "decode": {"resources": {"requests": {"nvidia.com/gpu": 2}}}},
        "spec.scaling.gpuBudget",
        "need 2 GPUs",
    ),
    ({"decode": {"resources": {"requests": {"cpu": "many"}}}}, "spec.decode.resources.requests.cpu", "is no quantity"),
    (
        {"decode": {"resources": {"requests": {"cpu": "999999999"}}}},
        "spec.decode.resources.requests.cpu",
        "at most 1024",
    ),
    ({"decode": {"resources": {"request": {}}}}, "spec.decode.resources.request", "did you mean requests?"),
]


@pytest.mark.parametrize(("spec", "path", "message"), WRONG, ids=[f"{i}-{case[1]}" for i, case in enumerate(WRONG)])
def test_wrong_spec_is_refused_with_its_path(build, spec, path, message):
    problems = dict(_refused(build(**spec)))
    assert path in problems
    assert message in problems[path]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"kind": "Deployment"}, "kind"),
        ({"apiVersion": "v1"}, "apiVersion"),
        ({"metadata": {}}, "metadata.name"),
        ({"metadata": {"name": "Not_A_Name"}}, "metadata.name"),
        ({"metadata": {"name": "a" * 60}}, "metadata.name"),
        ({"spec": None}, "spec"),
        ({"status": {}}, "status"),
    ],
)
def test_wrong_top_level_is_refused_with_its_path(build, change, path):
    assert path in dict(_refused(build() | change))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a manifest is a mapping"),
        ("- a\n- b", "a manifest is a mapping"),
        ("a: b: c", "line 1, column 5"),
        ("kind: a\nkind: b", "'kind' stands here twice"),
        ("a: [1", "line 1"),
        ("? [a, b]\n: 1", "a key must be plain text"),
        ("a: !!python/object:os.system {}", "line 1"),
        ("a: 1\n---\nb: 2", "found another document"),
    ],
)
def test_text_that_is_no_manifest_is_refused(text, message):
    with pytest.raises(ManifestError) as caught:
        resources.parse(text)
    assert message in str(caught.value)


def test_all_problems_are_told_at_once(build):
    problems = _refused(build(engine={"blockSize": 3}, drain={"deadline": "x"}, decode={"replica": 1}))
    assert len(problems) == 3


def test_stored_object_reads_as_its_manifest(build):
    """What the server adds to an object is no part of what the user wrote."""
    item = build()
    stored = copy.deepcopy(item)
    stored["metadata"] |= {"namespace": "default", "uid": "1", "generation": 3, "resourceVersion": "9"}
    stored["status"] = {"conditions": []}
    assert resources.service_from_object(stored) == _parse(item)
