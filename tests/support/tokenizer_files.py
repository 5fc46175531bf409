"""Texts to tokenize, and files with a small tokenizer."""

import io
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
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
    return _write(writer, path, {"bos_token_id": 0, "eos_token_id": 1, "chat_template": TEMPLATE} | changes)


def train_pieces(prefix: bool, *user_defined: str) -> SentencePieceProcessor:
    """A small SentencePiece tokenizer with the settings of Llama 2; `prefix`: a space precedes a text."""
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in CORPUS for line in text.splitlines()]),
        model_writer=model, model_type="bpe", vocab_size=480, byte_fallback=True, split_digits=True,
        allow_whitespace_only_pieces=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        add_dummy_prefix=prefix, user_defined_symbols=[*user_defined], minloglevel=2,
    )  # fmt: skip
    return SentencePieceProcessor(model_proto=model.getvalue())


def write_pieces(
    path: Path,
    pieces: SentencePieceProcessor,
    architecture: str = "llama",
    more: Mapping[str, int] = MappingProxyType({}),
    user_defined: Collection[str] = (),
    **changes: Any,
) -> Path:
    """Writes a file as llama.cpp's converter does: user-defined tokens have spaces. `more` as in `write_gguf`."""
    kinds = {each: 4 if each in user_defined else 1 for each in map(pieces.id_to_piece, range(len(pieces)))}
    kinds |= {each: 6 for each in kinds if pieces.is_byte(pieces.piece_to_id(each))}
    kinds |= {"<unk>": 2, "<s>": 3, "</s>": 3}
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*(each.replace("▁", " ") if kinds[each] == 4 else each for each in kinds), *more])
    writer.add_token_scores([*map(pieces.get_score, range(len(pieces))), *[-1000.0] * len(more)])
    writer.add_token_types([*kinds.values(), *more.values()])
    return _write(writer, path, changes)


def _write(writer: gguf.GGUFWriter, path: Path, given: Mapping[str, Any]) -> Path:
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
