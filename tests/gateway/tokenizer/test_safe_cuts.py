"""Texts are cut where their parts have the tokens of the whole, for every kind of tokenizer, and nowhere else."""

import random
from collections.abc import Callable

import budget
import pytest
import tokenizer_files
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from legato_gateway.tokenizer import block_encoder, gguf, sentence_piece
from legato_gateway.tokenizer.block_encoder import BlockEncoder
from legato_gateway.tokenizer.pair_analysis import NotUnderstood, Pattern
from legato_gateway.tokenizer.safe_cuts import SafeCuts

ADDED = ["<|begin|>", "<|end|>", "<|begin|>x", "\n\n", "end|>"]  # overlapping ones, and one of line breaks
CHARACTERS = " \n\t\r\u00a0\u2028\u200babXY019.,;:!?'\"/\\-_()[]{}<>|#▁é\u0301ßﬁ。٣½"
PIECES = [
    *CHARACTERS,
    *ADDED,
    *["the", " quick", "don't", "'s", "中文", "。\n", "👩\u200d👩", "  ", " \n", "\n\n", "\r\n"],
]
LETTERS = "".join(map(chr, [*range(65, 91), *range(97, 123)]))
DEEPSEEK = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
]


def byte_level(pre: str = "gpt-2", normalizer: object = None, **flags: bool) -> Tokenizer:
    tokenizer = Tokenizer.from_str(tokenizer_files.train().to_str())
    tokenizer.pre_tokenizer, tokenizer.normalizer = gguf._pre_tokenizer(pre, ""), normalizer
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, **flags) for text in ADDED])
    return tokenizer


def deepseek() -> Tokenizer:
    tokenizer = byte_level()
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in DEEPSEEK]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(False, use_regex=False)])
    return tokenizer


def split_by(pattern: str) -> Tokenizer:
    tokenizer = byte_level()
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    return tokenizer


def pieces(prefix: bool, *more: str, splits: bool = False) -> Tokenizer:
    """Merges texts of several words, as Llama 2 (`prefix`) and Gemma do; `more` are tokens of the vocabulary."""
    trained = tokenizer_files.train_pieces(prefix)
    tokens = [*map(trained.id_to_piece, range(len(trained))), *more]
    scores = [*map(trained.get_score, range(len(trained))), *[0.0] * len(more)]
    values = sentence_piece.DEFAULTS | {"add_space_prefix": prefix, "unknown_token_id": 0, "scores": scores}
    tokenizer = sentence_piece.tokenizer(values, tokens, "")
    if splits:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in ADDED])
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁", -2.0), *((c, -3.0) for c in LETTERS)], 0, False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in ADDED])
    return tokenizer


# What each kind is cut after, before a space and before a line break: every printable character (94), or others.
KINDS: dict[str, tuple[Callable[[], Tokenizer], tuple[int, int]]] = {
    **{pre: (lambda pre=pre: byte_level(pre), (94, 94)) for pre in ("smollm", "refact", "gpt-2", "seed-coder")},
    **{pre: (lambda pre=pre: byte_level(pre), (94, 62)) for pre in ("llama-bpe", "glm4", "qwen2", "gpt-4o")},
    "deepseek": (deepseek, (94, 62)),
    "NFKC": (lambda: byte_level("qwen2", normalizers.NFKC()), (94, 62)),
    "tokens that take the space before": (lambda: byte_level(lstrip=True), (94, 94)),
    "after": (lambda: byte_level(rstrip=True), (92, 92)),
    "whole words": (lambda: byte_level(single_word=True), (0, 0)),
    "lower case": (lambda: byte_level(normalizer=normalizers.Lowercase()), (0, 0)),
    "Gemma": (lambda: pieces(False, splits=True), (52, 0)),
    "a token with a space within": (lambda: pieces(False, "t▁", "e▁q", splits=True), (50, 0)),
    "Llama 2": (lambda: pieces(True), (0, 0)),
    "Unigram": (unigram, (0, 0)),
    "letters with a line break": (lambda: split_by(r"\p{L}+\n?|[^\p{L}]"), (94, 42)),
    "words that are joined by spaces": (lambda: split_by(r"\p{L}+( \p{L}+)*|[^\p{L}]"), (42, 94)),
    "texts that end": (lambda: split_by(r"\p{L}+(?! )|\p{L}|[^\p{L}]"), (0, 94)),
    "words by a boundary": (lambda: split_by(r"\b\w+|\W"), (0, 0)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_in_blocks_has_the_tokens_of_the_whole_also_when_they_are_cached(kind, monkeypatch):
    make, cut_after = KINDS[kind]
    tokenizer, rng = make(), random.Random(kind)
    pairs = SafeCuts(tokenizer).pairs
    assert tuple(len(pairs.get(after, "")) for after in " \n") == cut_after
    encoder = BlockEncoder(tokenizer)
    for _ in range(budget.times(60)):
        text = "".join(rng.choices(PIECES, k=rng.randrange(120)))
        for each in (text, text, text + "".join(rng.choices(PIECES, k=20))):
            monkeypatch.setattr(block_encoder, "BLOCK", len(each))
            apart = encoder.ids(each.split("X"))
            monkeypatch.setattr(block_encoder, "BLOCK", 5)
            assert encoder.ids([each], "salt") == tokenizer.encode(each, add_special_tokens=False).ids
            assert encoder.ids(each.split("X"), "salt") == apart
    encoder.cache.check_integrity()


@pytest.mark.parametrize(
    "pattern", ["(?<=a)b", "(?>a+)b", "a^", r"\w", r"[a&&b]", "a*", r"\p{Foo}", "(a", "[a", "a{2", "(?=ab)c"]
)
def test_a_pattern_that_is_not_understood_proves_nothing(pattern):
    with pytest.raises(NotUnderstood):
        Pattern(pattern)


def test_blocks_depend_on_no_text_after_them_and_end_at_the_first_cut_after_their_size():
    cuts, text = SafeCuts(byte_level()), "one two,\n" * 40 + "<|begin|>" + "中" * 50 + "<|end|>" + "x" * 60
    blocks = list(cuts.blocks(text, 20))
    assert "".join(blocks) == text
    assert blocks[0] == "one two,\none two,\none"
    assert blocks[-2:] == ["\n<|begin|>" + "中" * 50, "<|end|>" + "x" * 60]
    assert list(cuts.blocks(text + " more", 20))[:-2] == blocks[:-1]
