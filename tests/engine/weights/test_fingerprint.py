"""A fingerprint follows the content of a model and nothing else."""

import os
from dataclasses import replace
from pathlib import Path

import tiny_files as files
from gguf import GGMLQuantizationType as Type

from legato_engine.models.config import ModelConfig
from legato_engine.weights import fingerprint
from legato_engine.weights.fingerprint import FileSpan
from legato_engine.weights.opening import open_weights


def test_fingerprint_follows_the_content_and_not_the_name(tmp_path: Path) -> None:
    one, two = (open_weights(files.write_gguf(tmp_path / f"{i}.gguf", files.tiny(Type.Q4_1))) for i in range(2))
    other = open_weights(files.write_gguf(tmp_path / "3.gguf", files.tiny(Type.Q4_1, seed=5)))
    assert one.fingerprint == two.fingerprint
    assert one.fingerprint != other.fingerprint


CONFIG = ModelConfig("LlamaForCausalLM", 1, 8, 1, 1, 8, 8, 8, 8, 1e4, None, 1e-5, True, None, False, False)


def flip(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def test_a_large_model_is_known_by_its_config_and_pieces_of_each_tensor(tmp_path: Path) -> None:
    """Three tensors of 200 MiB in a sparse file: larger than what is read whole."""
    header, size, path = 4096, 200 << 20, tmp_path / "large"
    tensors = [FileSpan(header + index * size, size) for index in range(3)]
    path.touch()
    os.truncate(path, header + 3 * size)
    found = [fingerprint.compute({path: tensors}, config) for config in (replace(CONFIG, rope_theta=2e4), CONFIG)]
    for start, _ in tensors:
        flip(path, start + fingerprint.PIECE_BYTES)
        assert fingerprint.compute({path: tensors}, CONFIG) == found[-1], "it is not read between the pieces"
        flip(path, start + size - 1)
        found.append(fingerprint.compute({path: tensors}, CONFIG))
    assert len(set(found)) == 5


def test_sampling_reaches_the_header_and_every_tensor_of_both_formats(tmp_path: Path) -> None:
    """The first and the last byte of every tensor count."""
    gguf = files.write_gguf(tmp_path / "tiny.gguf", files.tiny(Type.Q4_1))
    files.write_folder(tmp_path / "folder")
    for path, held in ((gguf, gguf), (tmp_path / "folder", tmp_path / "folder" / "model.safetensors")):
        checkpoint = open_weights(path)
        (spans,) = checkpoint.spans().values()
        assert len(spans) == len(checkpoint.names())
        found = {fingerprint.compute({held: spans}, CONFIG, whole_bytes=0)}
        places = [9, *(start for start, _ in spans), *(start + size - 1 for start, size in spans)]
        for place in places:
            flip(held, place)
            found.add(fingerprint.compute({held: spans}, CONFIG, whole_bytes=0))
        assert len(found) == len(places) + 1


def test_shards_are_told_apart_by_what_each_holds(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode() * 64)
    whole = {tmp_path / name: [FileSpan(0, 64)] for name in "ab"}
    swapped = {tmp_path / name: [FileSpan(0, 64)] for name in "ba"}
    for limit in (0, 1 << 20):
        one, other = (fingerprint.compute(each, CONFIG, whole_bytes=limit) for each in (whole, swapped))
        assert one != other
