"""`legato plan`, as it is called."""

import json

import local_services
import pytest
import yaml

from legato_cli.plan import changes
from legato_operator.api import parsing
from legato_simulator.planner.shape import PoolLayout, PoolShape

STEP = {"perStep": 0.01, "perRow": 0.0001, "perContext": 0, "perToken": 0.0001, "perPair": 0}
PROFILE = {"source": "round numbers", "step": STEP, "kvTokens": 64_000, "startSeconds": 30}
SPEC = {"slo": {"ttft": "1s", "tpot": "50ms"}, "scaling": {"prefill": {"max": 3}, "decode": {"max": 3}}}


def _trace(count=150, **changes):
    """A request every 200 ms."""
    fields = {"input_length": 800, "output_length": 20}
    return "\n".join(json.dumps({"timestamp": 200 * i, **fields, **changes}) for i in range(count))


@pytest.fixture
def plan(tmp_path, legato, monkeypatch):
    """Plans for a trace with a profile, from the folder of the files."""
    monkeypatch.chdir(tmp_path)

    def run(*flags, trace=None, spec=None, names=("gpu",), **profile):
        local_services.write(tmp_path / "chat.yaml", "chat", **{**SPEC, **(spec or {})})
        (tmp_path / "chat.jsonl").write_text(trace or _trace())
        for name in names:
            (tmp_path / f"{name}.json").write_text(json.dumps({**PROFILE, **profile}))
        given = [part for name in names for part in ("--profile", f"{name}.json")]
        return legato("plan", "-f", "chat.yaml", "--trace", "chat.jsonl", "--jobs", "1", *given, *flags)

    return run


# A unified worker computes prompts in what `slo.tpot` leaves, or without running answers, which overlap here. 2 ms of
# 12 ms are too little for 4,000 tokens a second.
@pytest.mark.parametrize(("tpot", "pools"), [("50ms", "One pool: 1 unified"), ("12ms", "Separate pools: ")])
def test_the_answer_depends_on_the_objectives_and_names_its_reasons(plan, tpot, pools):
    code, out, _ = plan(spec={"slo": {"ttft": "1s", "tpot": tpot}}, trace=_trace(output_length=60))
    assert code == 0
    assert pools in out
    assert "Prompts are " in out


def test_the_written_manifest_has_the_chosen_shape_and_nothing_else_changed(plan, tmp_path):
    code, out, _ = plan("-o", "out.yaml", "--gpus", "4", "--json", "out.json")
    written = yaml.safe_load((tmp_path / "out.yaml").read_text())
    chosen = json.loads((tmp_path / "out.json").read_text())["options"][0]
    assert (code, chosen["shape"]["gpus"], chosen["result"]["attainment"] >= 0.95) == (0, 1, True)
    assert parsing.read_mapping(written).spec.scaling.decode.max == chosen["shape"]["decode"]
    assert written["spec"].pop("scaling") == {"prefill": {"min": 0, "max": 0}, "decode": {"min": 1, "max": 1}}
    assert written["spec"] == {**local_services.manifest("chat", slo=SPEC["slo"])["spec"], **written["spec"]}
    assert "decode:\n      min: 1\n      max: 1\n" in out


def test_the_same_input_gives_the_same_bytes(plan):
    assert plan().out == plan("--jobs", "2").out


GPU = {"parallelism": {"tensor": 2}, "resources": {"limits": {"nvidia.com/gpu": 2}}}
SHAPES = [
    PoolShape(PoolLayout(0, 1), 0, 3, 512, 0.035),
    PoolShape(PoolLayout(2, 4), 2, 1, 256, 0.1),
    PoolShape(PoolLayout(1, 1), 1, 2, 256, 0.05),
]
FIXED = {"scaling": {"mode": "Fixed"}, "prefill": {"replicas": 0}, "decode": {"replicas": 2}}


@pytest.mark.parametrize("spec", [SPEC, {"prefill": GPU, "decode": GPU}, {"scaling": {"gpuBudget": 4}}, FIXED])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_manifest_with_the_changes_is_the_simulated_one(spec, shape):
    manifest = local_services.manifest("chat", **spec)
    written = parsing.read_mapping(manifest).spec
    planned = shape.spec(written)
    merged = yaml.safe_load(changes.text(changes.merged(manifest, changes.changes(written, planned))))
    assert parsing.read_mapping(merged).spec == planned


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        ({"trace": _trace(1)}, 2, "chat has 1 request, and thus no rate"),
        ({"trace": _trace(output_length=1)}, 2, "no answer has more than one token"),
        ({"trace": '{"timestamp": 0, "input_length": 3}'}, 2, "missing required field `output_length`"),
        ({"trace": _trace(input_length=70_000)}, 1, "150 of 150 requests are longer than the 64000 tokens"),
        ({"model": "llama-3.1-8b"}, 2, "profile gpu.json is of llama-3.1-8b, and the manifest's model is smollm2"),
        ({"names": ("gpu", "other")}, 2, "gpu.json and other.json are both of workers with tensor 1"),
        ({"names": ()}, 2, "--profile is required"),
        ({"spec": {"slo": {"tpot": "10ms"}}}, 1, "a decode step of one sequence with 810 tokens takes 10.1 ms"),
        ({"trace": _trace(input_length=9_000)}, 1, "The closest is 4 unified"),
        ({"tensor": 8}, 1, "unified, tensor 8: needs at least 8 GPUs, and there are 4"),
    ],
)
def test_input_without_a_plan_is_answered_with_the_reason(plan, given, code, message):
    ended = plan("--gpus", "4", **given)
    assert (ended.code, message in ended.out + ended.err) == (code, True)


def test_a_profile_of_the_same_model_may_have_a_shorter_name(plan):
    assert plan("--gpus", "1", model="SmolLM2-135M").code == 0
