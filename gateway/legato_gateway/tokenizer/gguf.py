"""A tokenizer built from the metadata of a GGUF file.

A GGUF names its pre-tokenizer; each name stands for the rules that the model was trained with.
"""

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from legato_gateway.tokenizer import sentence_piece
from legato_gateway.tokenizer.files import ALWAYS_DEFINED, TokenizeError, TokenizerFiles
from legato_protocol.model_files import gguf_header

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
# Tokens in the metadata by their names there: their names in templates, and the ones that end a sequence.
_TEMPLATE_TOKENS = {
    "bos": "bos", "eos": "eos", "unknown": "unk", "seperator": "sep", "padding": "pad", "cls": "cls", "mask": "mask",
}  # fmt: skip
_NEEDED = ("bos", "eos", "eot", "eom")  # others may be out of range, as with llama.cpp
_ENDS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
# llama.cpp (src/llama-vocab.cpp) also detects ends by their text, since many files name only one of several.
_END_TEXTS = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>",
    "<EOT>", "_<EOT>", "<|end_of_text|>", "<end_of_utterance>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
})  # fmt: skip
_HARMONY_ENDS = frozenset({"<|return|>", "<|call|>"})  # of gpt-oss, whose "<|end|>" only ends a message
_KEEP_SPACES = frozenset({"<unk>", "<s>", "<|endoftext|>"})  # after them in Phi-3, unlike after its other added tokens
_PRE_TOKENIZERS = (
    "smollm",
    "refact",
    "gpt-2",
    "llama-bpe",
    "dbrx",
    "smaug-bpe",
    "glm4",
    "qwen2",
    "seed-coder",
    "gpt-4o",
)
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"
_WORDS_AND_SPACES = rf"{_BEFORE_WORD}\p{{L}}+|%s| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORDS_BY_CASE = "|".join(
    f"{_BEFORE_WORD}{word}{_CONTRACTIONS}?" for word in (f"{_UPPER}*{_LOWER}+", f"{_UPPER}+{_LOWER}*")
)
_GPT_4O = rf"{_WORDS_BY_CASE}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


def _byte_level(regex: bool) -> pre_tokenizers.ByteLevel:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)


def _split(pattern: str) -> pre_tokenizers.Sequence:
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), _byte_level(False)])


def _pre_tokenizer(name: object, source: str) -> pre_tokenizers.PreTokenizer:
    if name in ("smollm", "refact"):  # digits one by one, then as GPT-2
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _byte_level(True)])
    if name == "gpt-2":
        return _byte_level(True)
    if name in ("llama-bpe", "dbrx", "smaug-bpe", "glm4"):
        return _split(f"{_CONTRACTIONS}|{_WORDS_AND_SPACES}" % r"\p{N}{1,3}")
    if name == "qwen2":
        return _split(f"{_CONTRACTIONS}|{_WORDS_AND_SPACES}" % r"\p{N}")
    if name == "seed-coder":  # line breaks do not end punctuation
        return _split(rf"{_CONTRACTIONS}|{_BEFORE_WORD}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}")
    if name == "gpt-4o":
        return _split(_GPT_4O)
    raise TokenizeError(f"{source}: pre-tokenizer {name!r} is not supported; supported: {', '.join(_PRE_TOKENIZERS)}")


def from_gguf(path: Path) -> TokenizerFiles:
    """Reads a GGUF file. Raises TokenizeError, which names the file."""
    try:
        metadata = gguf_header.load(path).metadata
    except (OSError, ValueError) as error:
        raise TokenizeError(f"{path}: {error}") from None
    return _from_metadata(metadata, str(path))


def _from_metadata(metadata: dict[str, Any], source: str) -> TokenizerFiles:
    values = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    model = values.get("model")
    if model not in ("gpt2", "llama"):
        raise TokenizeError(f"{source}: tokenizer model {model!r} is not supported; supported: gpt2, llama")
    tokens = _strings(values, "tokens", source)
    if pieces := model == "llama":
        values = sentence_piece.DEFAULTS | values
    tokenizer = (sentence_piece.tokenizer if pieces else _byte_pairs)(values, tokens, source)
    _add_tokens(tokenizer, values, tokens, strips=pieces and metadata.get("general.architecture") == "phi3")
    special = _special_ids(values, len(tokens), source)
    texts = dict.fromkeys(ALWAYS_DEFINED, "") | {
        f"{kind}_token": tokens[special[key]] for key, kind in _TEMPLATE_TOKENS.items() if key in special
    }
    tokenizer.post_processor = _around(
        [texts["bos_token"]] if values.get("add_bos_token", pieces or values.get("pre") == "llama-bpe") else [],
        [texts["eos_token"]] if values.get("add_eos_token", False) else [],
        tokenizer,
    )
    eos_ids = {special[key] for key in _ENDS if key in special}
    ends = _END_TEXTS - {"<|end|>"} if _HARMONY_ENDS.issubset(tokens) else _END_TEXTS
    eos_ids |= {id for id, token in enumerate(tokens) if token in ends}
    template, tool_template = (metadata.get(f"tokenizer.chat_template{name}") for name in ("", ".tool_use"))
    longest = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    return TokenizerFiles(
        tokenizer,
        template,
        tool_template,
        texts,
        tuple(sorted(eos_ids)),
        longest=longest if isinstance(longest, int) else None,
    )


def _around(before: list[str], behind: list[str], tokenizer: Tokenizer) -> processors.TemplateProcessing:
    """Puts these tokens before and behind each text. Empty ones are left out."""
    first, last = ([token for token in tokens if token] for tokens in (before, behind))
    return processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last, *first, "$B", *last],
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in {*first, *last}],
    )


def _strings(values: dict[str, Any], key: str, source: str) -> list[str]:
    strings = values.get(key)
    if not isinstance(strings, list) or not all(isinstance(entry, str) for entry in strings):
        raise TokenizeError(f"{source}: tokenizer.ggml.{key} has to be a list of strings")
    return strings


def _special_ids(values: dict[str, Any], size: int, source: str) -> dict[str, int]:
    keys = (*_TEMPLATE_TOKENS, *_ENDS)
    ids = {key: values[f"{key}_token_id"] for key in keys if f"{key}_token_id" in values}
    valid = {key: id for key, id in ids.items() if isinstance(id, int) and 0 <= id < size}
    for key, id in ids.items():
        if key in _NEEDED and key not in valid:
            raise TokenizeError(f"{source}: {key}_token_id is {id!r}, of {size} tokens")
    return valid


def _byte_pairs(values: dict[str, Any], tokens: list[str], source: str) -> Tokenizer:
    merges = [(left, right) for left, _, right in (m.partition(" ") for m in _strings(values, "merges", source))]
    if not tokens or not merges or not all(right for _, right in merges):
        raise TokenizeError(
            f"{source}: its tokenizer has {len(tokens)} tokens and {len(merges)} merges, or broken ones"
        )
    pre = values.get("pre", "gpt-2")
    pre_tokenizer = _pre_tokenizer(pre, source)
    vocabulary = {token: id for id, token in enumerate(tokens)}
    try:
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre == "llama-bpe"))
    except Exception as error:  # the library raises nothing narrower
        raise TokenizeError(f"{source}: its merges do not fit its tokens: {error}") from None
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _add_tokens(tokenizer: Tokenizer, values: dict[str, Any], tokens: list[str], strips: bool) -> None:
    """Adds the tokens that are recognized anywhere in a text, before it is split; with `strips`, most of them with the
    whitespace after them."""
    types = values.get("token_type")
    kinds = dict(zip(tokens, types, strict=False)) if isinstance(types, list) else {}
    kinds |= dict.fromkeys(_END_TEXTS.intersection(tokens), _CONTROL)
    for added, special in (((_UNKNOWN, _CONTROL), True), ((_USER_DEFINED,), False)):
        entries = [
            AddedToken(token, special=special, normalized=False, rstrip=strips and token not in _KEEP_SPACES)
            for token in dict.fromkeys(tokens)
            if kinds.get(token) in added
        ]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(entries)
