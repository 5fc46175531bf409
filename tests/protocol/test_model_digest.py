"""The digest tells models apart by what their files say, and sees nothing else."""

import shutil

import pytest

from legato_protocol.model_files import model_digest
from legato_protocol.model_files.gguf_header import BadGguf

ONE_KEY = b"GGUF" + (3).to_bytes(4, "little") + (0).to_bytes(8, "little") + (1).to_bytes(8, "little")


def gguf(path, name, tensors=b""):
    key, text = b"tokenizer.ggml.pre", name.encode()
    strings = len(key).to_bytes(8, "little") + key + (8).to_bytes(4, "little") + len(text).to_bytes(8, "little") + text
    path.write_bytes(ONE_KEY + strings + tensors)
    return path


def folder(path, **files):
    path.mkdir()
    for name, text in {"config": "{}", "tokenizer": '{"a": 0}', **files}.items():
        (path / f"{name}.json").write_text(text)
    return path


def test_a_gguf_is_told_by_its_header(tmp_path):
    one = model_digest.digest(gguf(tmp_path / "a", "smollm"))
    assert len(one) == 32
    assert one == model_digest.digest(gguf(tmp_path / "b", "smollm", b"weights"))
    assert one != model_digest.digest(gguf(tmp_path / "c", "qwen2"))


@pytest.mark.parametrize("name", ["config", "tokenizer", "tokenizer_config", "generation_config"])
def test_a_folder_is_told_by_its_texts(tmp_path, name):
    one = folder(tmp_path / "a")
    shutil.copytree(one, tmp_path / "b")
    (tmp_path / "b" / "model.safetensors").write_bytes(b"weights")
    assert model_digest.digest(one) == model_digest.digest(tmp_path / "b")
    assert model_digest.digest(one) != model_digest.digest(folder(tmp_path / "c", **{name: '{"b": 1}'}))


def test_texts_of_two_files_are_not_mixed_up(tmp_path):
    one, two = folder(tmp_path / "a", config="x", tokenizer=""), folder(tmp_path / "b", config="", tokenizer="x")
    assert model_digest.digest(one) != model_digest.digest(two)


def test_what_is_no_model_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(b"text")
    with pytest.raises(BadGguf):
        model_digest.digest(tmp_path / "a")
