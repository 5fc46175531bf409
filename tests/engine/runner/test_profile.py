"""Profiles: what their files may say, and what a step takes by them."""

import json
from pathlib import Path

import msgspec
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
    ("own", "ranks", "share"), [(1, 1, 1), (1, 2, 0.6), (1, 4, 0.35), (2, 8, 1 / 3), (4, 2, 12 / 7)]
)
def test_another_degree_divides_compute_and_memory_and_adds_all_reduces(own: int, ranks: int, share: float) -> None:
    measured = msgspec.convert({**GIVEN, "tensor": own}, profile.Profile)
    assumed = measured.of_degree(ranks)
    assert (assumed.tensor, assumed.kv_tokens, assumed.start_seconds) == (ranks, 4096 * ranks // own, 2)
    assert assumed.step.seconds(1, 1000, 100, 5000) == pytest.approx(share * measured.step.seconds(1, 1000, 100, 5000))


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
