"""All kernels of a worker are compiled without a GPU, and the one that cannot be is named."""

import json
import re

import checked_kernels
import gpu_kernels
import lora_folders
import pytest
import uninterpreted
from safetensors.torch import save_file

from legato_engine.models.config import from_huggingface

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    weights = lora_folders.RandomCheckpoint(from_huggingface(CONFIG, "here"))
    save_file({name: weights.tensor(name) for name in weights.names()}, folder / "model.safetensors")
    return uninterpreted.call(checked_kernels.told, str(folder))


def test_every_kernel_that_the_docs_tell_of_is_compiled(told):
    _, tables, _ = gpu_kernels.page()
    assert told["names"] == sorted(set(re.findall(r"^\| `(\w+)", tables, re.MULTILINE)))


def test_names_are_noted_no_longer_than_asked(told):
    assert not told["still noted"]


def test_nothing_is_said_where_all_compile(told):
    assert told["well"] == [0, "", ""]


def test_a_kernel_that_does_not_fit_is_named_with_the_reason(told):
    code, kernel, why = told["little"]
    assert (code, kernel) == (1, "attend_items\n")
    assert "out of resource: shared memory" in why
    assert "Hardware limit: 4096" in why


def test_a_model_that_is_not_supported_is_refused_before_any_kernel(told):
    code, kernel, why = told["blocks"]
    assert (code, kernel) == (1, "\n")
    assert why.startswith("a block size of 8 tokens is not supported")


def test_a_kernel_that_triton_refuses_is_named_with_the_reason(told):
    code, kernel, why = told["width"]
    assert (code, kernel) == (1, "_silu_mul\n")
    assert why.splitlines()[-1] == "arange's range must be a power of 2"
