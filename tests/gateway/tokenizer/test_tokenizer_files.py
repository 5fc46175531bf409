"""What a folder and a GGUF say of their tokenizer is obeyed, and what cannot be read is refused by name."""

import json

import pytest
from tokenizer_files import TEMPLATE, TEXTS, write_folder, write_gguf
from tokenizers import Tokenizer, pre_tokenizers

from legato_gateway.tokenizer.tokens import ModelTokenizer, TokenizeError


def test_the_vocabulary_reaches_to_the_largest_id(trained, tmp_path):
    described = json.loads(trained.to_str())
    vocabulary = described["model"]["vocab"]
    last = max(vocabulary, key=vocabulary.__getitem__)
    vocabulary[last] += 7
    tokens = ModelTokenizer.load(write_folder(tmp_path, Tokenizer.from_str(json.dumps(described))))
    assert tokens.vocab_size == vocabulary[last] + 1
    assert tokens.token_bytes(vocabulary[last])
    assert tokens.token_bytes(vocabulary[last] - 1) == b""


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "a 1234  b", ["a", " 1234", " ", " b"]),
        ("smollm", "a 1234  b", ["a", " ", "1", "2", "3", "4", " ", " b"]),
        ("llama-bpe", "a 12345\n\nIT'S", ["a", " ", "123", "45", "\n\n", "IT", "'S"]),
        ("qwen2", "a 123!\nb", ["a", " ", "1", "2", "3", "!\n", "b"]),
    ],
)
def test_each_pre_tokenizer_splits_as_its_models_do(tmp_path, trained, pre, text, pieces):
    """No token crosses a border, and a piece is tokenized as it is alone."""
    loaded = ModelTokenizer.load(write_gguf(tmp_path / "t.gguf", trained, pre, add_bos_token=False))
    alone = [id for piece in pieces for id in trained.model.tokenize(as_bytes(piece)) or ()]
    assert loaded.encode(text) == [token.id for token in alone]


def as_bytes(piece: str) -> str:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(piece)[0][0]


FIRST_TOKENS = [("gpt-2", None, False), ("gpt-2", True, True), ("llama-bpe", None, True), ("llama-bpe", False, False)]


@pytest.mark.parametrize(("pre", "add", "begins"), FIRST_TOKENS)
def test_a_first_token_is_added_where_the_model_wants_one(tmp_path, trained, pre, add, begins):
    loaded = ModelTokenizer.load(write_gguf(tmp_path / "t.gguf", trained, pre, add_bos_token=add))
    assert (loaded.encode("the fox")[0] == 0) == begins
    assert loaded.encode("the fox", add_special=False)[0] != 0
    assert loaded.encode_chat([{"role": "user", "content": "fox"}])[0] != 0


def test_a_folder_and_a_gguf_of_one_tokenizer_are_equal(tmp_path, trained):
    file = ModelTokenizer.load(write_gguf(tmp_path / "t.gguf", trained))
    folder = ModelTokenizer.load(write_folder(tmp_path, trained, chat_template=TEMPLATE, bos_token="<|begin|>"))
    messages = [{"role": "user", "content": "the lazy dog 🙂"}]
    assert [file.encode(text) for text in TEXTS] == [folder.encode(text) for text in TEXTS]
    assert file.encode_chat(messages) == folder.encode_chat(messages)
    assert all(file.token_bytes(id) == folder.token_bytes(id) for id in range(file.vocab_size))
    assert file.eos_ids == folder.eos_ids == (1,)
    assert file.vocab_size == folder.vocab_size


def test_all_ends_of_sequence_that_a_folder_declares(tmp_path, trained):
    write_folder(tmp_path, trained)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 7}))
    assert ModelTokenizer.load(tmp_path).eos_ids == (1, 7)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 9]}))
    assert ModelTokenizer.load(tmp_path).eos_ids == (1, 2, 9)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"pre": "superbpe"}, "superbpe.*smollm, gpt-2, llama-bpe, qwen2"),
        ({"model": "llama"}, "'llama'.*gpt2"),
        ({"eos_token_id": 10**6}, "eos_token_id"),
        ({"chat_template": "{% for %}"}, "template is broken"),
    ],
)
def test_a_gguf_that_cannot_be_read_is_refused(tmp_path, trained, changes, text):
    with pytest.raises(TokenizeError, match=text):
        ModelTokenizer.load(write_gguf(tmp_path / "t.gguf", trained, **changes))


def test_bad_files_are_refused_by_name(tmp_path, trained):
    whole = write_gguf(tmp_path / "t.gguf", trained).read_bytes()
    for name, data in {"cut.gguf": whole[:3000], "empty.gguf": b"", "other.gguf": b"not a model"}.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(TokenizeError, match=name):
            ModelTokenizer.load(tmp_path / name)
    with pytest.raises(TokenizeError, match=r"none\.gguf"):
        ModelTokenizer.load(tmp_path / "none.gguf")
    with pytest.raises(TokenizeError, match=r"tokenizer\.json"):
        ModelTokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizeError, match=r"tokenizer\.json"):
        ModelTokenizer.load(tmp_path)
