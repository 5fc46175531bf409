"""Fields of vLLM's that say what the prompt is: where an answer begins, and which of the prompt's tokens are kept."""

import asyncio
import json
from contextlib import nullcontext

import pytest
from served_texts import served, tokenizer

from legato_gateway.errors import BadRequest
from legato_gateway.openai import chat_start
from legato_protocol.packed_tokens import unpack_tokens

TOKENS = tokenizer()
USER = {"role": "user", "content": "hi"}
HALF = {"role": "assistant", "content": "The capital is "}
OPEN = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nThe capital is "
CLOSED = f"{OPEN}<|im_end|>\n"


def ids(text):
    return TOKENS.encode(text, add_special=False)


def prompt(gateway):
    """What the worker was given in the latest request."""
    frames = [frame for worker in gateway.workers for frame in worker.received if hasattr(frame, "sequence")]
    return tuple(unpack_tokens(frames[-1].sequence.token_ids))


@pytest.mark.parametrize(
    ("fields", "given", "role", "text"),
    [
        ({}, f"{CLOSED}<|im_start|>assistant\n", "assistant", "Paris"),
        ({"add_generation_prompt": None}, f"{CLOSED}<|im_start|>assistant\n", "assistant", "Paris"),
        ({"add_generation_prompt": False}, CLOSED, "assistant", "Paris"),
        ({"continue_final_message": True}, OPEN, "assistant", "Paris"),
        ({"continue_final_message": True, "add_generation_prompt": False}, OPEN, "assistant", "Paris"),
        ({"continue_final_message": True, "echo": True}, OPEN, "assistant", "The capital is Paris"),
        ({"echo": True}, f"{CLOSED}<|im_start|>assistant\n", "assistant", "The capital is Paris"),
        ({"echo": False}, f"{CLOSED}<|im_start|>assistant\n", "assistant", "Paris"),
        ({"messages": [USER], "echo": True}, None, "assistant", "Paris"),
        ({"messages": [USER], "echo": True, "add_generation_prompt": False}, None, "user", "hiParis"),
        ({"messages": [USER], "continue_final_message": True}, "<|im_start|>user\nhi", "user", "Paris"),
    ],
)
async def test_where_an_answer_begins(lab, fields, given, role, text):
    async with served(lab, "Paris", "Paris") as gateway:
        for stream in (False, True):
            answer = await gateway.ask("chat/completions", stream, n=2, **{"messages": [USER, HALF], **fields})
            assert answer.texts == {0: text, 1: text}
            told = [choice.get("message") or choice["delta"] for chunk in answer.chunks for choice in chunk["choices"]]
            assert [each["role"] for each in told if "role" in each] == [role, role]
            if given:
                assert prompt(gateway) == tuple(ids(given))


async def test_the_content_of_several_parts_is_continued_as_one(lab):
    async with served(lab, "Paris") as gateway:
        parts = [{"type": "text", "text": "The capital"}, {"type": "text", "text": " is "}]
        messages = [USER, {"role": "assistant", "content": parts}]
        await gateway.ask("chat/completions", messages=messages, continue_final_message=True)
        assert prompt(gateway) == tuple(ids(OPEN))


@pytest.mark.parametrize(
    ("fields", "given"),
    [
        ({"continue_final_message": True}, OPEN),
        ({"add_generation_prompt": False}, CLOSED),
        ({"add_special_tokens": True}, f"<|mark|>{CLOSED}<|im_start|>assistant\n"),
    ],
)
async def test_the_tokens_of_such_a_prompt_are_told(lab, fields, given):
    async with served(lab, "Paris", first="<|mark|>") as gateway:
        response = await gateway.http.post("/tokenize", json={"messages": [USER, HALF], **fields})
        assert response.json()["tokens"] == ids(given)


TRIMS = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}"
ESCAPES = "{% for m in messages %}{{ m.content | tojson }}{% endfor %}"


async def test_a_template_that_trims_is_continued_without_the_space(lab):
    async with served(lab, "Paris", template=TRIMS) as gateway:
        await gateway.ask("chat/completions", messages=[USER, HALF], continue_final_message=True)
        assert prompt(gateway) == tuple(ids("[hi][The capital is"))


CALL = {"id": "a", "type": "function", "function": {"name": "now", "arguments": "{}"}}


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


async def test_an_echo_stands_before_calls_and_before_text(lab):
    call = 'now: <tool_call>{"name": "now", "arguments": {}}</tool_call>'
    async with served(lab, call) as gateway:
        for stream in (False, True):
            fields = {"tools": [{"type": "function", "function": {"name": "now"}}], "continue_final_message": True}
            answer = await gateway.ask("chat/completions", stream, messages=[USER, HALF], echo=True, **fields)
            assert answer.texts == {0: "The capital is now:"}
            assert answer.finishes == {0: "tool_calls"}
            assert '"name": "now"' in json.dumps(answer.chunks)


async def test_special_tokens_are_added_to_a_chat_where_it_asks_for_them(lab):
    async with served(lab, "Paris", first="<|mark|>") as gateway:
        for fields, first in (
            ({}, ""),
            ({"add_special_tokens": False}, ""),
            ({"add_special_tokens": True}, "<|mark|>"),
        ):
            await gateway.ask("chat/completions", messages=[USER], **fields)
            assert prompt(gateway) == tuple(ids(f"{first}<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"))


LONG = "".join(chr(97 + number % 26) for number in range(3000))


@pytest.mark.parametrize(
    ("fields", "given"),
    [
        ({"prompt": "abcdef", "truncate_prompt_tokens": 3}, ids("<|mark|>ef")),
        ({"prompt": "abcdef", "truncate_prompt_tokens": 3, "add_special_tokens": False}, ids("def")),
        ({"prompt": "abcdef", "truncate_prompt_tokens": 1}, ids("<|mark|>")),
        ({"prompt": "abcdef", "truncate_prompt_tokens": 50}, ids("<|mark|>abcdef")),
        ({"prompt": ids("abcdef"), "truncate_prompt_tokens": 3}, ids("def")),
        ({"prompt": LONG, "truncate_prompt_tokens": -1, "max_tokens": 100}, ids("<|mark|>" + LONG[-899:])),
        ({"prompt": ids(LONG), "truncate_prompt_tokens": -1, "max_tokens": 100}, ids(LONG[-900:])),
        ({"prompt": ids(LONG), "truncate_prompt_tokens": -1, "max_tokens": None}, ids(LONG[-984:])),
        ({"prompt": LONG, "truncate_prompt_tokens": 900, "max_tokens": 100}, ids("<|mark|>" + LONG[-899:])),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_the_last_tokens_of_a_prompt_are_kept(lab, fields, given):
    """Special tokens before a text stay, as transformers cuts it: without its first token a model says nonsense."""
    async with served(lab, "Paris", first="<|mark|>") as gateway:
        answer = await gateway.ask("completions", **fields)
        assert prompt(gateway) == tuple(given)
        assert answer.usages[-1][1]["prompt_tokens"] == len(given)


async def test_the_last_tokens_of_a_chat_are_kept(lab):
    async with served(lab, "Paris") as gateway:
        message = {"role": "user", "content": LONG}
        whole = ids(f"<|im_start|>user\n{LONG}<|im_end|>\n<|im_start|>assistant\n")
        for fields, count in (
            ({"truncate_prompt_tokens": 20}, 20),
            ({"truncate_prompt_tokens": -1}, 900),
            ({"truncate_prompt_tokens": -1, "max_completion_tokens": 10}, 990),
            ({"truncate_prompt_tokens": -1, "max_tokens": None}, 999),
        ):
            await gateway.ask("chat/completions", messages=[message], **fields)
            assert prompt(gateway) == tuple(whole[-count:])


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
                assert sorted(answer.prompts) == sorted(map(ids, kept))
                texts = [text.removeprefix("<|mark|>") for text in kept]
                assert answer.texts == {0: f"{texts[0]}!", 1: f"{texts[1]}!"}


async def test_ids_that_are_not_kept_are_bounded_all_the_same(lab):
    async with served(lab, "Paris") as gateway:
        body = {"prompt": [1] * ((1 << 20) + 1), "truncate_prompt_tokens": 5}
        response = await gateway.http.post("/v1/completions", json=body)
        assert response.status_code == 400
        assert "1048577 tokens" in response.json()["error"]["message"]
        body = {"prompt": [1] * 100_000, "truncate_prompt_tokens": 5}
        assert (await gateway.http.post("/v1/completions", json=body)).status_code == 200


@pytest.mark.parametrize("after", [1, 3])
async def test_a_continued_message_that_is_resumed_elsewhere_says_the_same(lab, after):
    async with served(lab, "née à Paris", workers=2) as gateway:
        fields = {"messages": [USER, HALF], "continue_final_message": True, "echo": True}
        wanted = await gateway.ask("chat/completions", True, **fields)
        for worker in gateway.workers:
            worker.hold("decoding", after)
        asking = asyncio.create_task(gateway.ask("chat/completions", True, **fields))
        await gateway.gateway.until(lambda: any(worker.engine.at("decoding") for worker in gateway.workers))
        (busy,) = (worker for worker in gateway.workers if worker.engine.jobs)
        await busy.kill()
        for worker in gateway.workers:
            worker.release()
        assert (await asking).texts == wanted.texts == {0: "The capital is née à Paris"}


@pytest.mark.parametrize(("characters", "choices", "refused"), [(1 << 23, 1, False), (1 << 17, 128, True)])
def test_echoes_are_bounded_over_all_choices(characters, choices, refused):
    with pytest.raises(BadRequest, match="echo repeats") if refused else nullcontext():
        chat_start.check_echo(characters, choices)
