"""Texts to tokenize, and files with a small tokenizer."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXTS = [
    "",
    "The capital of France is",
    "   7 apples, 12345 pears and 3.14159 pies",
    "Hello\n\n\tworld  \r\n  don't they'LL",
    "naïve café 日本語 Ελληνικά привет ١٢٣",
    "👩‍👩‍👧‍👦 🙂🙂 e\u0301 \u200b \ufeff",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "\x00\x01 control \x7f",
    "def f(x):\n    return x**2  # ½ ² Ⅷ\n",
    "a" * 3000,
]
CORPUS = ["the quick brown fox jumps over the lazy dog 0123456789 don't we'll " * 3, *TEXTS] * 3
SPECIAL = ["<|begin|>", "<|end|>", "<|pad|>"]
TEMPLATE = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + eos_token }}\n{% endfor %}"


def train() -> Tokenizer:
    """A small byte-level tokenizer, as models of the GPT-2 kind have."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=sorted(alphabet), special_tokens=SPECIAL, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def write_gguf(
    path: Path,
    tokenizer: Tokenizer,
    pre: str = "gpt-2",
    model: str = "gpt2",
    more: Mapping[str, int] = MappingProxyType({}),
    **changes: Any,
) -> Path:
    """Writes a file with the tokenizer and, after its tokens, `more` of the given types."""
    described = json.loads(tokenizer.to_str())["model"]
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([*(token for token, _ in vocabulary), *more])
    writer.add_token_types([*(3 if token in SPECIAL else 1 for token, _ in vocabulary), *more.values()])
    writer.add_token_merges([" ".join(merge) for merge in described["merges"]])
    given = {"bos_token_id": 0, "eos_token_id": 1, "chat_template": TEMPLATE} | changes
    for key, value in given.items():
        if value is not None:
            getattr(writer, f"add_{key}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_folder(path: Path, tokenizer: Tokenizer, **config: Any) -> Path:
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|end|>"}} | config))
    return path
