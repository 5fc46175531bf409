"""Profiles: what their files may say, and what a step takes by them."""

import json
from pathlib import Path

import pytest

from legato_engine.errors import UnusableProfile
from legato_engine.runner import profile

STEP = {"perStep": 0.01, "perRow": 0.001, "perContext": 1e-6, "perToken": 2e-5, "perPair": 1e-9}
GIVEN = {"source": "a test", "step": STEP, "kvTokens": 4096, "startSeconds": 2}


def written(folder: Path, content: object) -> str:
    path = folder / "profile.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_a_profile_is_a_file_or_a_shipped_one(tmp_path: Path) -> None:
    found = profile.find(written(tmp_path, GIVEN))
    assert (found.step.per_context, found.kv_tokens, found.start_seconds) == (1e-6, 4096, 2)
    names = profile.shipped()
    assert "cpu-2-cores-smollm2-135m" in names
    for name in names:
        assert profile.find(name).source


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({**GIVEN, "step": {**STEP, "perRow": -1}}, "$.step.perRow"),
        ({**GIVEN, "step": {**STEP, "perStep": 0}}, "$.step.perStep"),
        ({**GIVEN, "step": {**STEP, "perPrompt": 1}}, "perPrompt"),
        ({**GIVEN, "kvTokens": 0.5}, "$.kvTokens"),
        ({"source": "a test", "step": STEP, "kvTokens": 1}, "startSeconds"),
        ('{"source"', "truncated"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, content: object, said: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(UnusableProfile) as refused:
        profile.find(path)
    assert path in str(refused.value)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/no/such.json", "/no/such.json: No such file"),
        ("h100", r"no such profile: h100 \(a JSON file, or one of cpu-2-cores"),
    ],
)
def test_what_is_missing_is_named(name: str, message: str) -> None:
    with pytest.raises(UnusableProfile, match=message):
        profile.find(name)


def test_the_profile_of_this_cpu_gives_the_steps_that_it_was_fitted_to() -> None:
    """`benchmarks/README.md`, Results without AMX."""
    step = profile.find("cpu-2-cores-smollm2-135m").step
    for rows, context, seconds in ((1, 256, 5.5e-3), (8, 256, 15.0e-3), (32, 256, 47.0e-3), (32, 1000, 95.5e-3)):
        assert step.seconds(rows, rows * context, 0, 0) == pytest.approx(seconds, rel=0.02)
    for tokens, start, seconds in ((256, 0, 0.115), (512, 0, 0.246), (512, 512, 0.318), (512, 3072, 0.714)):
        assert step.seconds(0, 0, tokens, tokens * (start + tokens / 2)) == pytest.approx(seconds, rel=0.02)


def test_the_profile_of_two_h100_gives_the_latencies_that_were_published() -> None:
    """`docs/paced.md` shows how it follows from them: prompts of 5,000 tokens, answers of 500, so many at once."""
    step = profile.find("h100x2-llama-3.3-70b-fp8").step
    prompt = step.seconds(0, 0, 5000, 5000 * 2500) - step.per_step
    for running, published in ((1, 18.58e-3), (5, 21.83e-3), (25, 38.75e-3), (50, 59.73e-3), (85.5, 92.9e-3)):
        latency = step.seconds(0, int(running * 5250), 0, 0) + prompt * (running - 1) / 500
        assert latency == pytest.approx(published, rel=0.05)
    assert step.seconds(0, 0, 500, 500 * 250) == pytest.approx(47.77e-3, rel=0.05)
