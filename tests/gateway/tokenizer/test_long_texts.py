"""Texts that are too long are refused or cut where transformers cuts them, for little memory."""

import sys
from subprocess import run
from unittest.mock import Mock

import pytest
import transformers
from tokenizer_files import CORPUS, SPECIAL, TEMPLATE, TEXTS, write_folder, write_gguf
from tokenizers import Tokenizer, pre_tokenizers, processors

from legato_gateway.tokenizer.tokens import ModelTokenizer, TextTooLong

COMPOSED = ["e\u0301" * 200, "\u1112\u1161\u11ab" * 200, "\u03b1\u0314\u0342\u0345" * 200, "\uff21" * 200]


@pytest.mark.parametrize("pre", ["gpt-2", "qwen2"])
def test_a_text_of_as_many_tokens_as_allowed_is_never_too_long(tmp_path, trained, pre):
    """Not even where the normalizer makes the text shorter, nor where it is the longest token alone."""
    loaded = ModelTokenizer.load(write_gguf(tmp_path / "t.gguf", trained, pre))
    longest = max(range(3, loaded.vocab_size), key=lambda id: len(loaded.token_bytes(id)))
    for text in (*TEXTS, *COMPOSED, loaded.token_bytes(longest).decode() * 500):
        ids = loaded.encode(text)
        assert loaded.encode(text, most=len(ids)) == ids


def test_a_text_that_is_too_long_whatever_its_tokens_never_reaches_the_tokenizer(tmp_path, trained):
    loaded = ModelTokenizer.load(write_folder(tmp_path, trained, chat_template=TEMPLATE))
    longest = max(len(loaded.token_bytes(id)) for id in range(loaded.vocab_size))
    loaded._encoder = Mock()
    for text in ("a" * (100 * longest + 1), "é" * (50 * longest + 1)):
        with pytest.raises(TextTooLong) as said:
            loaded.encode(text, most=100)
        assert said.value.size == len(text.encode())
        with pytest.raises(TextTooLong):
            loaded.encode_chat([{"role": "user", "content": text}], most=100)
    assert loaded._encoder.mock_calls == []
    loaded._encoder.ids.side_effect = AssertionError("asked")
    with pytest.raises(AssertionError, match="asked"):
        loaded.encode("a" * (100 * longest), most=100)


@pytest.mark.parametrize("keep", [1, 2, 7, 100])
def test_the_last_tokens_are_kept_as_transformers_does(tmp_path, trained, reference, tokens, monkeypatch, keep):
    text = "the quick brown fox, again and again and again"
    monkeypatch.setattr(reference, "truncation_side", "left")
    assert tokens.encode(text, keep=keep) == reference(text, truncation=True, max_length=keep)["input_ids"]
    with_first = ModelTokenizer.load(write_gguf(tmp_path / "t.gguf", trained, add_bos_token=True))
    whole = with_first.encode(text)
    assert with_first.encode(text, keep=keep) == ([whole[0], *whole[len(whole) - keep + 1 :]] if keep < 100 else whole)
    assert with_first.encode(text, add_special=False, keep=keep) == whole[1:][-keep:]
    assert with_first.encode("a" * 10_000, most=10, keep=keep)[0] == whole[0]


@pytest.mark.parametrize("around", ["<|begin|> $A", "$A <|end|>", "<|begin|> <|pad|> $A <|end|>", "$A"])
def test_what_stands_around_a_text_that_is_cut_is_what_transformers_puts_there(tmp_path, trained, around):
    tokenizer = Tokenizer.from_str(trained.to_str())
    special = [(text, id) for id, text in enumerate(SPECIAL)]
    tokenizer.post_processor = processors.TemplateProcessing(single=around, special_tokens=special)
    loaded = ModelTokenizer.load(write_folder(tmp_path, tokenizer))
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, truncation_side="left")
    special_ids = len(loaded.encode(""))
    for text in ("", "the quick<|end|> brown fox <|begin|>"):
        for keep in (special_ids + 1, special_ids + 4, 100):
            assert loaded.encode(text, keep=keep) == theirs(text, truncation=True, max_length=keep)["input_ids"]
        if special_ids:  # they stay, even where there is no room for them
            assert loaded.encode(text, keep=1) == loaded.encode("")


CUTS = """
import sys
from legato_gateway.tokenizer.tokens import ModelTokenizer

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))

tokens, text = ModelTokenizer.load(sys.argv[1]), "0" * 200_000
assert len(tokens.encode(text)) == len(text) + 1
before = peak()
assert len(tokens.encode(text, keep=2)) == 2
print(peak() - before)
"""


def test_a_text_that_is_cut_takes_no_more_memory_than_one_that_is_not(tmp_path, trained):
    """In a process of its own, whose peak nobody else made. Every token alone is what is cut off."""
    tokenizer = Tokenizer.from_str(trained.to_str())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), tokenizer.pre_tokenizer])
    special = [("<|begin|>", 0)]
    tokenizer.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=special)
    write_folder(tmp_path, tokenizer)
    done = run([sys.executable, "-c", CUTS, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 50 << 20


@pytest.mark.parametrize("direction", ["left", "right"])
def test_texts_are_neither_cut_nor_padded_whatever_a_tokenizer_was_saved_with(tmp_path, trained, direction):
    """As transformers does: tokenizers are saved as they were in training."""
    saved = Tokenizer.from_str(trained.to_str())
    saved.enable_truncation(8, direction=direction)
    saved.enable_padding(direction=direction, length=32, pad_id=2, pad_token="<|pad|>")
    write_folder(tmp_path, saved, chat_template=TEMPLATE)
    loaded = ModelTokenizer.load(tmp_path)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    messages = [{"role": "user", "content": CORPUS[0]}]
    for text in ("the", CORPUS[0], *TEXTS):
        assert loaded.encode(text) == trained.encode(text).ids == theirs(text)["input_ids"]
    assert loaded.encode_chat(messages) == trained.encode(loaded.render_chat(messages)).ids
    assert loaded.encode(CORPUS[0], keep=20) == trained.encode(CORPUS[0]).ids[-20:]
