"""Defaults from a model's makers are read as they wrote them, or refused with the file and the key."""

import json
import re
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Tokenizer, decoders, models

from legato_gateway import generation_config
from legato_gateway.generation_config import BadGenerationConfig, GenerationDefaults
from legato_gateway.tokenizer.tokens import ModelTokenizer, TokenizeError


def folder(path: Path, text: str, config: dict[str, Any] | None = None) -> Path:
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "generation_config.json").write_text(text)
    (path / "config.json").write_text(json.dumps(config or {"vocab_size": 100, "eos_token_id": 7}))
    return path


def gguf_file(path: Path, **values: Any) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for key, (kind, value) in values.items():
        getattr(writer, f"add_{kind}")(f"general.sampling.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


ALL = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.05, "max_new_tokens": 2048}


def test_a_folder_says_what_its_makers_set(tmp_path):
    found = generation_config.load(folder(tmp_path, json.dumps(ALL | {"do_sample": True, "top_h": None})))
    assert found == GenerationDefaults(0.7, 0.8, 20, 0.05, 1.05, 2048)
    assert str(found) == "temperature 0.7, top_p 0.8, top_k 20, min_p 0.05, repetition_penalty 1.05, max_tokens 2048"


def test_what_is_not_said_or_null_is_no_default(tmp_path):
    found = generation_config.load(folder(tmp_path, '{"temperature": null, "top_k": 0}'))
    assert found == GenerationDefaults(top_k=0)
    assert found.given() == {"top_k": 0}
    (tmp_path / "generation_config.json").unlink()
    assert generation_config.load(tmp_path) == GenerationDefaults()


def test_a_gguf_says_it_in_the_keys_of_its_converter(tmp_path):
    """Its floats have 32 bits: they are told as they were written."""
    floats = {"temp": 0.6, "top_p": 0.95, "min_p": 0.01, "penalty_repeat": 1.1}
    values = {name: ("float32", value) for name, value in floats.items()} | {"top_k": ("int32", 20)}
    path = gguf_file(tmp_path / "m.gguf", **values)
    assert generation_config.load(path) == GenerationDefaults(0.6, 0.95, 20, 0.01, 1.1)
    assert generation_config.load(gguf_file(tmp_path / "n.gguf")) == GenerationDefaults()


NUMBERS = "(a number from 0.0 to 2.0)"
WRONG = {
    '{"temperature": "hot"}': f"temperature: not a valid value: 'hot' {NUMBERS}",
    '{"temperature": NaN}': f"temperature: not a valid value: nan {NUMBERS}",
    '{"top_p": -0.1}': "top_p: not a valid value: -0.1 (a number from 0.0 to 1.0)",
    '{"top_k": 20.5}': "top_k: not a valid value: 20.5 (a whole number from -1 to 2147483647)",
    '{"repetition_penalty": 0}': "repetition_penalty: not a valid value: 0 (a number from 0.01 to 100.0)",
    '{"max_new_tokens": 0}': "max_new_tokens: not a valid value: 0 (a whole number from 1 to 2147483647)",
    '{"temperature": 0.5': "not valid JSON",
    "[" * 100_000: "not valid JSON",
    "[1]": "not a JSON object",
}


def test_what_cannot_be_used_is_refused_with_file_and_key(tmp_path):
    for text, said in WRONG.items():
        with pytest.raises(BadGenerationConfig, match=re.escape(said)) as error:
            generation_config.load(folder(tmp_path, text))
        assert str(error.value).startswith(f"{tmp_path / 'generation_config.json'}: ")
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "generation_config.json").mkdir()
    with pytest.raises(BadGenerationConfig, match=r"generation_config\.json: Is a directory"):
        generation_config.load(tmp_path)


def test_a_gguf_that_cannot_be_used_is_refused_with_file_and_key(tmp_path):
    path = gguf_file(tmp_path / "m.gguf", temp=("string", "hot"))
    for said in (f"{path}: general.sampling.temp: not a valid value: 'hot'", "m.gguf: ends within its header"):
        with pytest.raises(BadGenerationConfig, match=re.escape(said)):
            generation_config.load(path)
        path.write_bytes(b"GGUF")


WRONG_ENDS = {
    '"</s>"': "'</s>' (0 to 99)",
    "[1, true]": "True (0 to 99)",
    "-1": "-1 (0 to 99)",
    "[2, 100]": "100 (0 to 99)",
    "1.5": "1.5 (0 to 99)",
    str(list(range(49))): "49 tokens (at most 48)",
}


def test_ends_of_sequence_that_no_worker_would_take_are_refused_at_the_start(tmp_path):
    """A worker refuses each request with such an id, so none would ever be answered."""
    for given, said in WRONG_ENDS.items():
        with pytest.raises(TokenizeError, match=re.escape(said)) as error:
            ModelTokenizer.load(folder(tmp_path, f'{{"eos_token_id": {given}}}'))
        assert str(error.value).startswith(f"{tmp_path / 'generation_config.json'}: eos_token_id: ")


def test_ends_of_sequence_are_the_model_s_where_its_defaults_have_none(tmp_path):
    assert ModelTokenizer.load(folder(tmp_path, '{"temperature": 0.5}')).eos_ids == (7,)
    assert ModelTokenizer.load(folder(tmp_path, '{"eos_token_id": [3, 9]}')).eos_ids == (3, 9)
