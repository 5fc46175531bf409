"""Manifests: defaults, what each value means, and that everything wrong is refused with its path."""

import copy

import pytest
import yaml
from wrong_manifests import WRONG

from legato_operator.api import parsing
from legato_operator.errors import ManifestError


def _parse(item):
    return parsing.parse(yaml.safe_dump(item))


def _fixed(prefill, decode):
    return {"scaling": {"mode": "Fixed"}, "prefill": {"replicas": prefill}, "decode": {"replicas": decode}}


def _refused(item):
    with pytest.raises(ManifestError) as caught:
        _parse(item)
    return caught.value.problems


def test_only_the_source_is_required(build):
    service = _parse(build())
    assert (service.served_name, service.metadata.namespace) == ("demo", "default")
    assert service.spec.disaggregated


@pytest.mark.parametrize(
    ("spec", "read", "value"),
    [
        ({"engine": {"numerics": "Invariant"}}, lambda spec: spec.engine.numerics, "Invariant"),
        *(
            ({"drain": {"deadline": text}}, lambda spec: spec.drain.deadline, seconds)
            for text, seconds in {"10m": 600, "1s": 1, "100ms": 0.1, "1h30m": 5400, "0.5s": 0.5, "2m": 120}.items()
        ),
        *(
            ({"engine": {"kvCacheMemory": text}}, lambda spec: spec.engine.kv_cache_memory, size)
            for text, size in {"512Mi": 512 << 20, "1Gi": 1 << 30, "500M": 500_000_000, "1.5Gi": 3 << 29}.items()
        ),
        ({"engine": {"kvCacheMemory": 1 << 20}}, lambda spec: spec.engine.kv_cache_memory, 1 << 20),
        ({"engine": {"kvCacheMemory": "Auto"}}, lambda spec: spec.engine.kv_cache_memory, None),
        # Without prefill there is one pool.
        ({"scaling": {"prefill": {"max": 0}}}, lambda spec: spec.disaggregated, False),
        (_fixed(0, 2), lambda spec: spec.disaggregated, False),
        (_fixed(1, 2), lambda spec: spec.disaggregated, True),
    ],
)
def test_value_of_a_field(build, spec, read, value):
    assert read(_parse(build(**spec)).spec) == pytest.approx(value)


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
        ("kind: a\nkind: b", "'kind' is a duplicate key"),
        ("a: [1", "line 1"),
        ("? [a, b]\n: 1", "a key must be plain text"),
        ("a: !!python/object:os.system {}", "line 1"),
        ("a: 1\n---\nb: 2", "found another document"),
    ],
)
def test_text_that_is_no_manifest_is_refused(text, message):
    with pytest.raises(ManifestError) as caught:
        parsing.parse(text)
    assert message in str(caught.value)


def test_all_problems_are_told_at_once(build):
    problems = _refused(build(engine={"blockSize": 3}, drain={"deadline": "x"}, decode={"replica": 1}))
    assert len(problems) == 3


def test_stored_object_reads_as_its_manifest(build):
    """Fields that the server adds are not read as the user's."""
    item = build()
    stored = copy.deepcopy(item)
    stored["metadata"] |= {"namespace": "default", "uid": "1", "generation": 3, "resourceVersion": "9"}
    stored["status"] = {"conditions": []}
    assert parsing.service_from_object(stored) == _parse(item)


def test_a_stored_object_may_have_fields_of_a_later_version(build):
    """In a manifest that a user writes, such a field is a typo."""
    newer = build(engine={"later": {"deep": 1}, "chunkTokens": 64}, afterwards=1)
    service = parsing.service_from_object(newer)
    assert service.spec.engine.chunk_tokens == 64
    assert service == parsing.read_service(build(engine={"chunkTokens": 64}))
    assert parsing.unknown_fields(newer) == ["spec.engine.later", "spec.afterwards"]
    assert parsing.unknown_fields(build()) == []
    with pytest.raises(ManifestError, match="unknown field"):
        parsing.read_service(newer)
    with pytest.raises(ManifestError, match="blockSize"):
        parsing.service_from_object(build(engine={"blockSize": 17, "later": 1}))


def test_entries_of_a_stored_list_may_have_fields_of_a_later_version(build):
    def route(later):
        return {"httpRoute": {"parentRefs": [{"name": "a"}, {"name": "b", **later}], "hostnames": ["a.example.com"]}}

    newer = build(gateway=route({"later": 1, "afterwards": {"deep": 1}}))
    assert parsing.service_from_object(newer) == parsing.read_service(build(gateway=route({})))
    assert parsing.unknown_fields(newer) == [
        "spec.gateway.httpRoute.parentRefs.1.later",
        "spec.gateway.httpRoute.parentRefs.1.afterwards",
    ]
