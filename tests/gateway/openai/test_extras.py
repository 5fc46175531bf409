"""Fields of vLLM's: token ids, special tokens, stops, usage of each chunk, and what the prompt is."""

import asyncio
from contextlib import nullcontext
from itertools import product

import pytest
from served_texts import served, tokenizer

from legato_gateway.errors import BadRequest
from legato_gateway.openai.chat import answer_start
from legato_protocol.wire.packed_tokens import unpack_tokens

TOKENS = tokenizer()
(END,) = TOKENS.eos_ids
SAID = "née <|mark|>Paris.\n\nAnd"
PATHS = ("completions", "chat/completions")
WAYS = list(product(PATHS, (False, True)))  # paths, and whether streamed


def ids(text):
    return TOKENS.encode(text, add_special=False)


async def test_token_ids_of_prompt_and_answers(lab):
    """Each token once, the end of the sequence and those that complete a character later included."""
    async with served(lab, SAID, "é") as gateway:
        for path, stream in WAYS:
            answer = await gateway.ask(path, stream, n=2, return_token_ids=True)
            assert answer.token_ids == {0: [*ids(SAID), END], 1: [*ids("é"), END]}
            assert answer.texts == {0: SAID.replace("<|mark|>", ""), 1: "é"}
            if path == "completions":
                assert answer.prompts == [ids("hi")] * 2
            else:
                assert answer.prompts == [ids("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")]
                assert "prompt_token_ids" in answer.chunks[0]


async def test_no_token_ids_are_sent_unless_asked_for(lab):
    async with served(lab, SAID) as gateway:
        for path, stream in WAYS:
            answer = await gateway.ask(path, stream, return_token_ids=False, include_stop_str_in_output=None)
            assert answer.prompts == []
            assert not any("token_ids" in choice for chunk in answer.chunks for choice in chunk["choices"])


SHOWN = {"skip_special_tokens": False}
INCLUDED = {"include_stop_str_in_output": True}
ENDS = [  # fields, the text and how it ends, and its tokens
    ({"stop": ".\n"}, "née Paris", "stop", "née <|mark|>Paris.\n"),
    ({"stop": ".\n", **INCLUDED}, "née Paris.\n", "stop", "née <|mark|>Paris.\n"),
    ({"stop": ["zz", "Par"], **INCLUDED}, "née Par", "stop", "née <|mark|>Par"),
    ({"stop": "zz", **INCLUDED}, "née Paris.\n\nAnd", "stop", f"{SAID}<|im_end|>"),
    ({"stop": "<|mark|>", **INCLUDED}, "née <|mark|>", "stop", "née <|mark|>"),
    ({"stop_token_ids": ids(".")}, "née Paris", "stop", "née <|mark|>Paris."),
    ({"stop_token_ids": ids("."), **INCLUDED}, "née Paris.", "stop", "née <|mark|>Paris."),
    (SHOWN, SAID, "stop", f"{SAID}<|im_end|>"),
    ({**SHOWN, **INCLUDED}, f"{SAID}<|im_end|>", "stop", f"{SAID}<|im_end|>"),
    ({**SHOWN, "stop": "mark"}, "née <|", "stop", "née <|mark|>"),
    ({"max_tokens": 3, **INCLUDED}, "né", "length", "né"),
    ({"max_tokens": 2}, "n\ufffd", "length", None),
    ({**SHOWN, "spaces_between_special_tokens": False}, SAID, "stop", f"{SAID}<|im_end|>"),
]


async def test_what_ends_a_text_and_special_tokens(lab):
    async with served(lab, SAID) as gateway:
        for (fields, text, finish, tokens), (path, stream) in product(ENDS, WAYS):
            answer = await gateway.ask(path, stream, return_token_ids=True, **fields)
            assert (answer.texts[0], answer.finishes[0]) == (text, finish), fields
            assert answer.token_ids[0] == (ids(tokens) if tokens else ids("né")[:2])
            assert answer.usages in ([], [(0, answer.chunks[0].get("usage"))])


STOPS = [  # fields, how an answer ends, and what of the request ended it
    ({"stop": "s!"}, "stop", "s!"),
    ({"stop": ["zz", "ri"], **INCLUDED}, "stop", "ri"),
    ({"stop_token_ids": [*ids("!"), *ids("z")]}, "stop", 0),
    ({"stop_token_ids": ids("!"), "stop": "Par"}, "stop", "Par"),
    ({"stop_token_ids": ids("!"), "stop": "!?", **INCLUDED}, "stop", 0),
    ({"stop_token_ids": ids("z"), "stop": "zz"}, "stop", None),
    ({"stop_token_ids": ids("i"), "max_tokens": 3}, "length", None),
    ({"stop": "ri", "min_tokens": 3}, "stop", "ri"),
    ({"stop": "ri", "min_tokens": 4}, "stop", None),
    ({"stop": ["ri", "ris!"], "min_tokens": 4}, "stop", "ris!"),
    ({"stop": "ri", "min_tokens": 7, "max_tokens": 7}, "length", None),
    ({}, "stop", None),
]


async def test_an_answer_names_the_stop_that_ended_each_choice(lab):
    assert ids("!") == [0]
    async with served(lab, "Paris!?", "Paris!?") as gateway:
        for (fields, finish, stop), (path, stream) in product(STOPS, WAYS):
            answer = await gateway.ask(path, stream, n=2, **fields)
            assert (answer.finishes, answer.stops) == ({0: finish, 1: finish}, {0: stop, 1: stop}), fields
            choices = [choice for chunk in answer.chunks for choice in chunk["choices"]]
            assert all(("stop_reason" in choice) == (choice["finish_reason"] is not None) for choice in choices)


async def test_usage_of_each_chunk_counts_the_tokens_so_far(lab):
    async with served(lab, "née", "a") as gateway:
        for path in PATHS:
            options = {"include_usage": True, "continuous_usage_stats": True}
            answer = await gateway.ask(path, True, n=2, return_token_ids=True, stream_options=options)
            made, prompt = {0: 0, 1: 0}, len(answer.prompts[0])
            for chunk in answer.chunks[:-1]:
                (choice,) = chunk["choices"]
                made[choice["index"]] += len(choice.get("token_ids", ()))
                count = made[choice["index"]]
                usage = {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
                assert chunk["usage"] == usage
            assert answer.chunks[-1]["usage"]["completion_tokens"] == sum(made.values()) == len(ids("née")) + 1 + 2
        for options in ({"continuous_usage_stats": True}, {"include_usage": True, "continuous_usage_stats": False}):
            answer = await gateway.ask("completions", True, stream_options=options)
            assert [choice for choice, _ in answer.usages if choice is not None] == [], "both are needed, as in vLLM"


async def test_log_probabilities_name_tokens_by_their_ids(lab):
    async with served(lab, "é") as gateway:
        for (path, stream), asked in product(WAYS, (True, False)):
            fields = {"logprobs": 1} if path == "completions" else {"logprobs": True, "top_logprobs": 1}
            answer = await gateway.ask(path, stream, return_tokens_as_token_ids=asked, **fields)
            shown = {END: "<|im_end|>"} if path == "completions" else {}  # completions list the end as well
            wanted = [f"token_id:{id}" if asked else shown.get(id, "\ufffd") for id in [*ids("é"), *shown]]
            if path == "completions":
                assert [name for part in answer.logprobs for name in part["tokens"]] == wanted
                tops = [top for part in answer.logprobs for top in part["top_logprobs"]]
                assert tops == [{name: -0.5} for name in wanted]
            else:
                tokens = [token for part in answer.logprobs for token in part["content"]]
                assert [(token["token"], token["top_logprobs"][0]["token"]) for token in tokens] == [
                    (name, name) for name in wanted
                ]
                assert bytes(byte for token in tokens for byte in token["bytes"]).decode() == "é"


async def test_token_ids_of_calls(lab):
    """Tokens that are read as parts of a call belong to the answer as others do."""
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    asked = {"tools": [{"type": "function", "function": {"name": "now"}}], "return_token_ids": True}
    async with served(lab, call) as gateway:
        for stream in (False, True):
            answer = await gateway.ask("chat/completions", stream, **asked)
            assert (answer.finishes, answer.token_ids) == ({0: "tool_calls"}, {0: [*ids(call), END]})
        options = {"include_usage": True, "continuous_usage_stats": True}
        answer = await gateway.ask("chat/completions", True, **asked, stream_options=options)
        counted = [usage["completion_tokens"] for _, usage in answer.usages]
        assert counted == sorted(counted)
        assert counted[-1] == len(ids(call)) + 1


USER = {"role": "user", "content": "hi"}
HALF = {"role": "assistant", "content": "The capital is "}
PARTS = {"role": "assistant", "content": [{"type": "text", "text": text} for text in ("The capital", " is ")]}
ASKED = "<|im_start|>user\nhi<|im_end|>\n"
OPEN = f"{ASKED}<|im_start|>assistant\nThe capital is "
CLOSED = f"{OPEN}<|im_end|>\n"
NEXT = f"{CLOSED}<|im_start|>assistant\n"
CONTINUED = {"continue_final_message": True}


def prompt(gateway):
    """The prompt of the latest request that a worker was given."""
    frames = [frame for worker in gateway.workers for frame in worker.received if hasattr(frame, "sequence")]
    return list(unpack_tokens(frames[-1].sequence.token_ids))


BEGINS = [  # messages, fields, the prompt, whose message an answer is, and its text
    ([USER, HALF], {}, NEXT, "assistant", "Paris"),
    ([USER, HALF], {"add_generation_prompt": None}, NEXT, "assistant", "Paris"),
    ([USER, HALF], {"add_generation_prompt": False}, CLOSED, "assistant", "Paris"),
    ([USER, HALF], CONTINUED, OPEN, "assistant", "Paris"),
    ([USER, PARTS], CONTINUED, OPEN, "assistant", "Paris"),
    ([USER, HALF], {**CONTINUED, "add_generation_prompt": False}, OPEN, "assistant", "Paris"),
    ([USER, HALF], {**CONTINUED, "echo": True}, OPEN, "assistant", "The capital is Paris"),
    ([USER, HALF], {"echo": True}, NEXT, "assistant", "The capital is Paris"),
    ([USER, HALF], {"add_special_tokens": False}, NEXT, "assistant", "Paris"),
    ([USER, HALF], {"add_special_tokens": True}, f"<|mark|>{NEXT}", "assistant", "Paris"),
    ([USER], {"echo": True}, f"{ASKED}<|im_start|>assistant\n", "assistant", "Paris"),
    ([USER], {"echo": True, "add_generation_prompt": False}, ASKED, "user", "hiParis"),
    ([USER], CONTINUED, "<|im_start|>user\nhi", "user", "Paris"),
]


async def test_where_an_answer_begins(lab):
    async with served(lab, "Paris", "Paris", first="<|mark|>") as gateway:
        for (messages, fields, given, role, text), stream in product(BEGINS, (False, True)):
            answer = await gateway.ask("chat/completions", stream, n=2, messages=messages, **fields)
            assert answer.texts == {0: text, 1: text}, fields
            said = [choice.get("message") or choice["delta"] for chunk in answer.chunks for choice in chunk["choices"]]
            assert [each["role"] for each in said if "role" in each] == [role, role], fields
            assert prompt(gateway) == ids(given), fields
            if "echo" not in fields:
                tokenized = await gateway.http.post("/tokenize", json={"messages": messages, **fields})
                assert tokenized.json()["tokens"] == ids(given)


TRIMS = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}"
ESCAPES = "{% for m in messages %}{{ m.content | tojson }}{% endfor %}"
CALL = {"id": "a", "type": "function", "function": {"name": "now", "arguments": "{}"}}


async def test_a_template_that_trims_is_continued_without_the_space(lab):
    async with served(lab, "Paris", template=TRIMS) as gateway:
        await gateway.ask("chat/completions", messages=[USER, HALF], **CONTINUED)
        assert prompt(gateway) == ids("[hi][The capital is")


@pytest.mark.parametrize(
    ("template", "fields", "said"),
    [
        (TRIMS, {"add_generation_prompt": True}, "cannot both be true"),
        (ESCAPES, {"messages": [{"role": "assistant", "content": 'a "b" c'}]}, "changes the last message"),
        ("{{ messages[0].role }}", {}, "changes the last message"),
        (TRIMS, {"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}]}, "messages[1] ends with calls"),
        (TRIMS, {"messages": [USER, {**HALF, "tool_calls": [CALL]}]}, "messages[1] ends with calls"),
    ],
)
async def test_what_cannot_be_continued_is_refused(lab, template, fields, said):
    async with served(lab, "Paris", template=template) as gateway:
        body = {"messages": [USER], "continue_final_message": True, **fields}
        response = await gateway.http.post("/v1/chat/completions", json=body)
        assert response.status_code == 400
        assert said in response.json()["error"]["message"]


LONG = "".join(chr(97 + number % 26) for number in range(3000))
CHAT = f"<|im_start|>user\n{LONG}<|im_end|>\n<|im_start|>assistant\n"
KEPT = [  # a prompt, how much of it is kept, other fields, and what the worker is given
    ("abcdef", 3, {}, "<|mark|>ef"),
    ("abcdef", 3, {"add_special_tokens": False}, "def"),
    ("abcdef", 1, {}, "<|mark|>"),
    ("abcdef", 50, {}, "<|mark|>abcdef"),
    (ids("abcdef"), 3, {}, "def"),
    (LONG, -1, {"max_tokens": 100}, "<|mark|>" + LONG[-899:]),
    (ids(LONG), -1, {"max_tokens": 100}, LONG[-900:]),
    (ids(LONG), -1, {"max_tokens": None}, LONG[-984:]),
    (LONG, 900, {"max_tokens": 100}, "<|mark|>" + LONG[-899:]),
    (None, 20, {}, ids(CHAT)[-20:]),
    (None, -1, {}, ids(CHAT)[-900:]),
    (None, -1, {"max_completion_tokens": 10}, ids(CHAT)[-990:]),
    (None, -1, {"max_tokens": None}, ids(CHAT)[-999:]),
]


async def test_the_last_tokens_of_a_prompt_are_kept(lab):
    """Special tokens before a text stay, as transformers cuts it: without its first token a model says nonsense."""
    async with served(lab, "Paris", first="<|mark|>") as gateway:
        for text, most, fields, given in KEPT:
            body = {"prompt": text} if text else {"messages": [{"role": "user", "content": LONG}]}
            path = "completions" if text else "chat/completions"
            answer = await gateway.ask(path, truncate_prompt_tokens=most, **body, **fields)
            assert prompt(gateway) == (ids(given) if isinstance(given, str) else given)
            assert answer.usages[-1][1]["prompt_tokens"] == len(prompt(gateway))


async def test_of_several_prompts_each_is_cut_and_its_echo_is_what_is_left(lab):
    async with served(lab, "!", first="<|mark|>") as gateway:
        for stream in (False, True):
            for prompts, special, kept in (
                (["abc", "vwxyz"], True, ["<|mark|>c", "<|mark|>z"]),
                (["abc", "vwxyz"], False, ["bc", "yz"]),
                ([ids("abc"), ids("vwxyz")], True, ["bc", "yz"]),
            ):
                fields = {"prompt": prompts, "truncate_prompt_tokens": 2, "echo": True, "return_token_ids": True}
                answer = await gateway.ask("completions", stream, add_special_tokens=special, **fields)
                assert answer.token_ids == {key: [*gateway.tokens.encode("!"), END] for key in (0, 1)}
                assert sorted(answer.prompts) == sorted(map(ids, kept))
                texts = [text.removeprefix("<|mark|>") for text in kept]
                assert answer.texts == {0: f"{texts[0]}!", 1: f"{texts[1]}!"}


async def test_ids_that_are_not_kept_are_bounded_all_the_same(lab):
    async with served(lab, "Paris") as gateway:
        for count, status in (((1 << 20) + 1, 400), (100_000, 200)):
            response = await gateway.http.post(
                "/v1/completions", json={"prompt": [1] * count, "truncate_prompt_tokens": 5}
            )
            assert response.status_code == status
            assert status == 200 or "1048577 tokens" in response.json()["error"]["message"]


@pytest.mark.parametrize(("characters", "choices", "refused"), [(1 << 23, 1, False), (1 << 17, 128, True)])
def test_echoes_are_bounded_over_all_choices(characters, choices, refused):
    with pytest.raises(BadRequest, match="echo repeats") if refused else nullcontext():
        answer_start.check_echo(characters, choices)


RESUMED = [
    {"return_token_ids": True, "n": 2},
    {"return_token_ids": True, "stop": "s.\n", **INCLUDED},
    {"return_token_ids": True, "stop": ["éz", "\n\nA"]},
    {**SHOWN, **INCLUDED, "return_token_ids": True},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "n": 2},
    {"messages": [USER, HALF], **CONTINUED, "echo": True},
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fields", RESUMED, ids=lambda fields: ",".join(fields))
@pytest.mark.parametrize("after", [2, 5, 11])
async def test_a_stream_that_is_resumed_elsewhere_says_the_same(lab, path, fields, after):
    """Cut within a character, within a special token's neighbourhood and within a stop string."""
    path = "chat/completions" if "messages" in fields else path
    async with served(lab, SAID, workers=2) as gateway:
        wanted = await gateway.ask(path, True, **fields)
        for worker in gateway.workers:
            worker.hold("decoding", after)
        asking = asyncio.create_task(gateway.ask(path, True, **fields))
        await gateway.gateway.until(lambda: any(worker.engine.at("decoding") for worker in gateway.workers))
        (busy,) = (worker for worker in gateway.workers if worker.engine.jobs)
        await busy.kill()
        for worker in gateway.workers:
            worker.release()
        found = await asking
        assert (found.texts, found.finishes, found.token_ids) == (wanted.texts, wanted.finishes, wanted.token_ids)
        assert (found.prompts, found.usages[-1:]) == (wanted.prompts, wanted.usages[-1:])
        for index in (0, 1):
            counted = [usage["completion_tokens"] for choice, usage in found.usages if choice == index]
            assert counted == sorted(counted)
