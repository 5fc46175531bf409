"""An object has not drifted when all that it names is there: others may add, and nobody may take away."""

import copy

import pytest

from legato_operator.manifests import common
from legato_operator.planning import drift

DESIRED = {
    "metadata": {"labels": {"a": "1"}},
    "spec": {
        "replicas": 2,
        "args": ["x", "y"],
        "empty": {},
        "containers": [{"name": "one", "env": [{"name": "A", "value": "1"}]}],
        "ports": [{"port": 1}, {"port": 2}],
    },
}


def _changed(change):
    live = copy.deepcopy(DESIRED)
    change(live)
    return live


OTHERS_ADD = [
    lambda live: live["metadata"]["labels"].update(b="2"),
    lambda live: live.update(status={"ready": True}),
    lambda live: live["spec"].pop("empty"),
    lambda live: live["spec"]["containers"].insert(0, {"name": "sidecar"}),
    lambda live: live["spec"]["containers"][0].update(image="added"),
    lambda live: live["spec"]["containers"][0]["env"].append({"name": "B"}),
    lambda live: live["spec"]["ports"][0].update(protocol="TCP"),
]
CHANGED_OR_TAKEN = [
    lambda live: live["metadata"]["labels"].pop("a"),
    lambda live: live["metadata"].pop("labels"),
    lambda live: live["spec"].update(replicas=3),
    lambda live: live["spec"].update(args=["y", "x"]),
    lambda live: live["spec"]["args"].append("z"),
    lambda live: live["spec"]["containers"].clear(),
    lambda live: live["spec"]["containers"][0]["env"][0].update(value="2"),
    lambda live: live["spec"]["ports"].append({"port": 3}),
    lambda live: live["spec"]["ports"].reverse(),
    lambda live: live["spec"].update(containers="text"),
]


@pytest.mark.parametrize("change", [*OTHERS_ADD, *CHANGED_OR_TAKEN])
def test_only_what_others_add_is_not_drift(change):
    assert drift.contained(DESIRED, _changed(change)) is (change in OTHERS_ADD)


FIELDS = {  # as the API server notes who applied them
    "f:metadata": {"f:annotations": {f"f:{common.ANNOTATION_APPLIED}": {}}, "f:labels": {"f:a": {}}},
    "f:spec": {
        "f:replicas": {},
        "f:args": {},
        "f:ports": {f'k:{{"port":{port},"protocol":"TCP"}}': {"f:port": {}} for port in (1, 2)},
        "f:containers": {
            'k:{"name":"one"}': {"f:name": {}, "f:env": {'k:{"name":"A"}': {"f:name": {}, "f:value": {}}}}
        },
    },
}
REWRITTEN = CHANGED_OR_TAKEN[:9]


@pytest.mark.parametrize("change", REWRITTEN)
@pytest.mark.parametrize(
    ("fields", "desired", "is_drift"),
    [(FIELDS, DESIRED, False), ({}, DESIRED, True), (FIELDS, {**DESIRED, "more": 1}, True)],
)
def test_what_was_rewritten_as_it_was_applied_is_not_drift(change, fields, desired, is_drift):
    """But somebody else's change is, and so is another desired state."""
    live = copy.deepcopy(common.signed(DESIRED))
    change(live)
    entry = {"manager": common.MANAGER, "operation": "Apply", "fieldsV1": fields}
    live["metadata"]["managedFields"] = [{**entry, "manager": "kubectl", "fieldsV1": FIELDS}, entry]
    assert drift.has_drifted(common.signed(desired), live) is is_drift
