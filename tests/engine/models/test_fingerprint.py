"""A fingerprint follows the content of a model and nothing else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType as Type

from legato_engine.models import fingerprint, weights
from legato_engine.models.config import ModelConfig


def test_fingerprint_follows_the_content_and_not_the_name(files: Any, tmp_path: Path) -> None:
    one, two = (weights.open(files.write_gguf(tmp_path / f"{i}.gguf", files.tiny(Type.Q4_1))) for i in range(2))
    other = weights.open(files.write_gguf(tmp_path / "3.gguf", files.tiny(Type.Q4_1, seed=5)))
    assert one.fingerprint == two.fingerprint
    assert one.fingerprint != other.fingerprint


def test_a_large_file_is_sampled_and_still_told_apart(tmp_path: Path) -> None:
    """Sparse files of more than the size that is read whole."""
    config = ModelConfig(
        "LlamaForCausalLM", 1, 8, 1, 1, 8, 8, 8, 8, 1e4, None, 1e-5, True, None, False, False
    )  # fmt: skip
    size = fingerprint.WHOLE_FILE_BYTES + 1
    found = set()
    for place in (0, size // 3 * 2, size - 4):
        with (tmp_path / "large").open("wb") as file:
            file.truncate(size)
            sample = place // fingerprint.SAMPLE_BYTES * fingerprint.SAMPLE_BYTES
            for start in range(max(0, sample - (8 << 20)), min(size, sample + (8 << 20)), 1 << 19):
                file.seek(start)
                file.write(b"x")
            file.truncate(size)
        found.add(fingerprint.of([tmp_path / "large"], config))
    assert len(found) == 3
    assert fingerprint.of([tmp_path / "large"], replace(config, rope_theta=2e4)) not in found
