"""Settings of a folder's or a GGUF's tokenizer are obeyed, and files that cannot be read are refused by name."""

import json

import pytest
from tokenizer_files import TEMPLATE, TEXTS, train_pieces, write_folder, write_gguf, write_pieces
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
        *((name, "a 1234  b", ["a", " ", "1", "2", "3", "4", " ", " b"]) for name in ("smollm", "refact")),
        *(
            (name, "a 12345\n\nIT'S", ["a", " ", "123", "45", "\n\n", "IT", "'S"])
            for name in ("llama-bpe", "dbrx", "smaug-bpe", "glm4")
        ),
        ("qwen2", "a 123!\nb", ["a", " ", "1", "2", "3", "!\n", "b"]),
        ("seed-coder", "a 12!\nb", ["a", " ", "1", "2", "!", "\n", "b"]),
        ("gpt-4o", "foxBOX we'll 1234 a/\nb", ["fox", "BOX", " we'll", " ", "123", "4", " a", "/\n", "b"]),
        ("gpt-4o", "\u0301A", ["\u0301", "A"]),
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


@pytest.mark.parametrize(
    ("given", "around"),
    [({}, ([1], [])), ({"add_bos_token": False, "add_eos_token": True}, ([], [2])), ({"bos_token_id": 5}, ([5], []))],
)
def test_a_sentence_piece_gguf_has_first_and_last_tokens(tmp_path, given, around):
    pieces = train_pieces(True)
    loaded = ModelTokenizer.load(write_pieces(tmp_path / "t.gguf", pieces, **given))
    assert loaded.encode("the fox") == around[0] + pieces.encode("the fox") + around[1]
    assert loaded.eos_ids == (2,)


@pytest.mark.parametrize(("architecture", "strips"), [("llama", False), ("phi3", True)])
def test_a_space_precedes_text_after_added_tokens_and_phi_3_ignores_what_follows_them(tmp_path, architecture, strips):
    pieces, more = train_pieces(True), {"<|user|>": 4, "<|end|>": 3}
    loaded = ModelTokenizer.load(write_pieces(tmp_path / "t.gguf", pieces, architecture, more))
    user, end = len(pieces), len(pieces) + 1
    said = "the fox" if strips else "\n  the fox"
    expected = [user, *pieces.encode(said), end, 1, *pieces.encode(" dog")]
    assert loaded.encode("<|user|>\n  the fox<|end|><s> dog", add_special=False) == expected
    assert loaded.eos_ids == (2, end)
    assert loaded.all_special_ids == {0, 1, 2, end}


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


def test_tokens_that_the_model_has_no_row_for_are_not_valid(tmp_path, trained):
    """Neither ends nor stop strings: the worker would refuse them."""
    more = Tokenizer.from_str(trained.to_str())
    more.add_special_tokens(["<|row|>", "<|none|>"])
    write_folder(tmp_path, more, eos_token="<|none|>")
    rows = more.token_to_id("<|none|>")
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": rows}))
    tokens = ModelTokenizer.load(tmp_path)
    assert (tokens.vocab_size, tokens.eos_ids) == (rows, ())
    assert tokens.special_ids(["<|row|>", "<|none|>"]) == {rows - 1}
    for id in range(100):  # clients choose what is shown
        tokens.detokenizer(frozenset({id}))
    assert len(tokens._tables) <= 8
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": rows + 100}))
    assert ModelTokenizer.load(tmp_path).vocab_size == rows + 1


LONGER = '{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools {{ tools[0] }}"}'


@pytest.mark.parametrize(
    ("config", "files", "shown"),
    [
        ({"chat_template": "plain"}, {}, ("plain", "plain")),
        ({"chat_template": json.loads(f"[{LONGER}]")}, {}, ("plain", "tools f")),
        ({"chat_template": [{"name": "tool_use", "template": "tools"}]}, {}, (None, "tools")),
        ({"chat_template": "old"}, {"chat_template.jinja": "plain"}, ("plain", "plain")),
        (
            {"chat_template": "old"},
            {"chat_template.jinja": "plain", "additional_chat_templates/tool_use.jinja": "tools {{ tools[0] }}"},
            ("plain", "tools f"),
        ),
        ({}, {"chat_template.jinja": "plain", "additional_chat_templates/rag.jinja": "documents"}, ("plain", "plain")),
    ],
)
def test_the_template_named_tool_use_renders_chats_with_tools(tmp_path, trained, config, files, shown):
    write_folder(tmp_path, trained, **config)
    for name, template in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(template)
    tokens = ModelTokenizer.load(tmp_path)
    messages = [{"role": "user", "content": "fox"}]
    if shown[0] is None:
        with pytest.raises(TokenizeError, match="no chat template"):
            tokens.render_chat(messages)
    else:
        assert tokens.render_chat(messages) == shown[0]
    assert tokens.render_chat(messages, {"tools": ["f"]}) == shown[1]
    assert tokens.template_takes("tools") == (shown[1] == "tools f")


def test_special_tokens_are_variables_of_templates(tmp_path, trained):
    template = "{{ bos_token }}|{{ eos_token }}|{{ unk_token }}|{{ pad_token }}|{{ sep_token is defined }}"
    given = {"unk_token": "<|pad|>", "pad_token": {"content": "<|begin|>"}, "chat_template": template}
    assert ModelTokenizer.load(write_folder(tmp_path, trained, **given)).render_chat([]) == (
        "|<|end|>|<|pad|>|<|begin|>|False"
    )
    file = write_gguf(tmp_path / "t.gguf", trained, unk_token_id=2, pad_token_id=10**6, chat_template=template)
    assert ModelTokenizer.load(file).render_chat([]) == "<|begin|>|<|end|>|<|pad|>||False"


def test_a_gguf_may_have_a_template_for_tools(tmp_path, trained):
    both = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    tokens = ModelTokenizer.load(write_gguf(tmp_path / "t.gguf", trained, chat_template=both))
    assert (tokens.render_chat([]), tokens.render_chat([], {"tools": ["f"]})) == ("plain", "tools")


@pytest.mark.parametrize("kind", [1, 3, 4])
def test_ends_of_sequence_in_a_gguf_are_also_known_by_their_text(tmp_path, trained, kind):
    """As in llama.cpp, whatever their type: many files name only one of several."""
    texts = {"<|im_end|>": kind, "<|eot_id|>": kind, "<|other|>": kind}
    tokens = ModelTokenizer.load(write_gguf(tmp_path / "t.gguf", trained, more=texts, eos_token_id=2))
    named = [tokens.encode(text, add_special=False)[0] for text in ("<|pad|>", "<|end|>", "<|im_end|>", "<|eot_id|>")]
    assert tokens.eos_ids == tuple(sorted(named))
    assert set(named) <= tokens.all_special_ids
    harmony = write_gguf(
        tmp_path / "t.gguf", trained, "gpt-4o", more={"<|return|>": kind, "<|call|>": kind}, eos_token_id=2
    )
    tokens = ModelTokenizer.load(harmony)
    assert {tokens.token_bytes(id) for id in tokens.eos_ids} == {b"<|pad|>", b"<|return|>", b"<|call|>"}


def test_added_tokens_are_literal_text(tmp_path, trained):
    """Bytes of ordinary tokens are written in an alphabet, in which é is the byte E9."""
    text = "a café b"
    file = ModelTokenizer.load(write_gguf(tmp_path / "t.gguf", trained, more={"café": 4, "<|ÿ|>": 3}))
    trained = Tokenizer.from_str(trained.to_str())
    trained.add_tokens(["café"])
    folder = ModelTokenizer.load(write_folder(tmp_path, trained))
    for tokens in (file, folder):
        ids = tokens.encode(text, add_special=False)
        assert b"".join(map(tokens.token_bytes, ids)) == text.encode()
    (id,) = file.encode("<|ÿ|>", add_special=False)
    assert file.token_bytes(id) == "<|ÿ|>".encode()


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


@pytest.mark.parametrize("name", ["t.gguf", "tokenizer.json", "tokenizer_config.json"])
def test_a_git_lfs_pointer_is_refused_with_the_way_to_fetch_it(tmp_path, trained, name):
    write_folder(tmp_path, trained)
    (tmp_path / name).write_bytes(POINTER)
    with pytest.raises(TokenizeError, match=f"{name}: .*Git LFS pointer.*git lfs pull"):
        ModelTokenizer.load(tmp_path / name if name == "t.gguf" else tmp_path)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"pre": "superbpe"}, "superbpe.*smollm, refact, gpt-2, llama-bpe, dbrx"),
        ({"model": "bert"}, "'bert'.*gpt2, llama"),
        ({"model": "llama"}, "scores has to be a list of 493"),
        ({"model": "llama", "token_scores": [0.0]}, "scores has to be a list of 493"),
        ({"model": "llama", "token_scores": [float("nan")] * 493}, "scores.*finite"),
        ({"model": "llama", "token_scores": [-1000.0] * 493}, "scores are -1000.*rank"),
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


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        ({}, None),
        ({"max_position_embeddings": 8192}, 8192),
        ({"max_position_embeddings": 8192, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 8192),
        ({"max_position_embeddings": 32768, "rope_scaling": {"type": "yarn", "factor": 4.0}}, 131_072),
        (
            {
                "max_position_embeddings": 40960,
                "rope_parameters": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32768},
            },
            131_072,
        ),
        ({"max_position_embeddings": "8192"}, None),
    ],
)
def test_the_length_that_a_model_declares_is_known(config, longest, trained, tmp_path):
    write_folder(tmp_path, trained)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert ModelTokenizer.load(tmp_path).declared_length == longest
