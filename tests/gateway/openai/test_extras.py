"""What vLLM's clients ask for beside the text: token ids, special tokens, what ended the text, usage of each chunk."""

import asyncio
from itertools import product

import pytest
from served_texts import served, tokenizer

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


async def test_token_ids_of_several_prompts(lab):
    async with served(lab, "ab") as gateway:
        for stream in (False, True):
            answer = await gateway.ask("completions", stream, prompt=["x", "yz"], return_token_ids=True, echo=True)
            assert answer.token_ids == {0: [*ids("ab"), END], 1: [*ids("ab"), END]}
            assert sorted(answer.prompts, key=len) == [ids("x"), ids("yz")]
            assert answer.texts == {0: "xab", 1: "yzab"}


async def test_nothing_more_is_told_to_who_does_not_ask(lab):
    async with served(lab, SAID) as gateway:
        for path, stream in WAYS:
            answer = await gateway.ask(path, stream, return_token_ids=False, include_stop_str_in_output=None)
            assert answer.prompts == []
            assert not any("token_ids" in choice for chunk in answer.chunks for choice in chunk["choices"])


@pytest.mark.parametrize(
    ("fields", "text", "finish", "tokens"),
    [
        ({"stop": ".\n"}, "née Paris", "stop", "née <|mark|>Paris.\n"),
        ({"stop": ".\n", "include_stop_str_in_output": True}, "née Paris.\n", "stop", "née <|mark|>Paris.\n"),
        ({"stop": ["zz", "Par"], "include_stop_str_in_output": True}, "née Par", "stop", "née <|mark|>Par"),
        ({"stop": "zz", "include_stop_str_in_output": True}, "née Paris.\n\nAnd", "stop", f"{SAID}<|im_end|>"),
        ({"stop_token_ids": ids(".")}, "née Paris", "stop", "née <|mark|>Paris."),
        ({"stop_token_ids": ids("."), "include_stop_str_in_output": True}, "née Paris.", "stop", "née <|mark|>Paris."),
        ({"skip_special_tokens": False}, SAID, "stop", f"{SAID}<|im_end|>"),
        (
            {"skip_special_tokens": False, "include_stop_str_in_output": True},
            f"{SAID}<|im_end|>",
            "stop",
            f"{SAID}<|im_end|>",
        ),
        ({"skip_special_tokens": False, "stop": "mark"}, "née <|", "stop", "née <|mark|>"),
        ({"max_tokens": 3, "include_stop_str_in_output": True}, "né", "length", "né"),
        ({"max_tokens": 2}, "n\ufffd", "length", None),
        ({"spaces_between_special_tokens": False, "skip_special_tokens": False}, SAID, "stop", f"{SAID}<|im_end|>"),
    ],
)
async def test_what_ends_a_text_and_special_tokens(lab, fields, text, finish, tokens):
    async with served(lab, SAID) as gateway:
        for path, stream in WAYS:
            answer = await gateway.ask(path, stream, return_token_ids=True, **fields)
            assert (answer.texts[0], answer.finishes[0]) == (text, finish)
            assert answer.token_ids[0] == (ids(tokens) if tokens else ids("né")[:2])
            assert answer.usages in ([], [(0, answer.chunks[0].get("usage"))])


@pytest.mark.parametrize(
    ("fields", "finish", "stop"),
    [
        ({"stop": "s!"}, "stop", "s!"),
        ({"stop": ["zz", "ri"], "include_stop_str_in_output": True}, "stop", "ri"),
        ({"stop_token_ids": [*ids("!"), *ids("z")]}, "stop", 0),
        ({"stop_token_ids": ids("!"), "stop": "Par"}, "stop", "Par"),
        ({"stop_token_ids": ids("!"), "stop": "!?", "include_stop_str_in_output": True}, "stop", 0),
        ({"stop_token_ids": ids("z"), "stop": "zz"}, "stop", None),
        ({"stop_token_ids": ids("i"), "max_tokens": 3}, "length", None),
        ({"stop": "ri", "min_tokens": 3}, "stop", "ri"),
        ({"stop": "ri", "min_tokens": 4}, "stop", None),
        ({"stop": ["ri", "ris!"], "min_tokens": 4}, "stop", "ris!"),
        ({"stop": "ri", "min_tokens": 7, "max_tokens": 7}, "length", None),
        ({}, "stop", None),
    ],
)
async def test_what_of_the_request_ended_a_choice_is_told(lab, fields, finish, stop):
    async with served(lab, "Paris!?", "Paris!?") as gateway:
        for path, stream in WAYS:
            assert ids("!") == [0]
            answer = await gateway.ask(path, stream, n=2, **fields)
            assert answer.finishes == {0: finish, 1: finish}
            assert answer.stops == {0: stop, 1: stop}
            choices = [choice for chunk in answer.chunks for choice in chunk["choices"]]
            assert all(("stop_reason" in choice) == (choice["finish_reason"] is not None) for choice in choices)


async def test_usage_of_each_chunk_counts_the_tokens_so_far(lab):
    async with served(lab, "née", "a") as gateway:
        for path in PATHS:
            options = {"include_usage": True, "continuous_usage_stats": True}
            answer = await gateway.ask(path, True, n=2, return_token_ids=True, stream_options=options)
            made = {0: 0, 1: 0}
            for chunk in answer.chunks[:-1]:
                (choice,) = chunk["choices"]
                made[choice["index"]] += len(choice.get("token_ids", ()))
                prompt, count = len(answer.prompts[0]), made[choice["index"]]
                usage = {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
                assert chunk["usage"] == usage
            assert answer.chunks[-1]["usage"]["completion_tokens"] == sum(made.values()) == len(ids("née")) + 1 + 2


async def test_usage_of_each_chunk_needs_include_usage_as_in_vllm(lab):
    async with served(lab, "ab") as gateway:
        for options in ({"continuous_usage_stats": True}, {"include_usage": True, "continuous_usage_stats": False}):
            answer = await gateway.ask("completions", True, stream_options=options)
            assert [choice for choice, _ in answer.usages if choice is not None] == []


async def test_log_probabilities_name_tokens_by_their_ids(lab):
    async with served(lab, "é") as gateway:
        for (path, stream), asked in product(WAYS, (True, False)):
            fields = {"logprobs": 1} if path == "completions" else {"logprobs": True, "top_logprobs": 1}
            answer = await gateway.ask(path, stream, return_tokens_as_token_ids=asked, **fields)
            shown = {END: "<|im_end|>"} if path == "completions" else {}  # completions tell of the end as well
            wanted = [f"token_id:{id}" if asked else shown.get(id, "\ufffd") for id in [*ids("é"), *shown]]
            if path == "completions":
                assert [name for told in answer.logprobs for name in told["tokens"]] == wanted
                assert [name for told in answer.logprobs for name in told["top_logprobs"]] == [
                    {name: -0.5} for name in wanted
                ]
            else:
                told = [token for told in answer.logprobs for token in told["content"]]
                assert [token["token"] for token in told] == wanted
                assert [token["top_logprobs"][0]["token"] for token in told] == wanted
                assert bytes(byte for token in told for byte in token["bytes"]).decode() == "é"


async def test_token_ids_of_calls(lab):
    """Tokens that are read as parts of a call belong to the answer as others do."""
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    async with served(lab, call) as gateway:
        for stream in (False, True):
            tool = {"type": "function", "function": {"name": "now"}}
            options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}} if stream else {}
            answer = await gateway.ask("chat/completions", stream, tools=[tool], return_token_ids=True, **options)
            assert answer.finishes == {0: "tool_calls"}
            assert answer.token_ids == {0: [*ids(call), END]}
            if stream:
                counted = [usage["completion_tokens"] for _, usage in answer.usages]
                assert counted == sorted(counted)
                assert counted[-1] == len(ids(call)) + 1


RESUMED = [
    {"return_token_ids": True, "n": 2},
    {"return_token_ids": True, "stop": "s.\n", "include_stop_str_in_output": True},
    {"return_token_ids": True, "stop": ["éz", "\n\nA"]},
    {"skip_special_tokens": False, "include_stop_str_in_output": True, "return_token_ids": True},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "n": 2},
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fields", RESUMED, ids=lambda fields: ",".join(fields))
@pytest.mark.parametrize("after", [2, 5, 11])
async def test_a_stream_that_is_resumed_elsewhere_says_the_same(lab, path, fields, after):
    """Cut within a character, within a special token's neighbourhood and within a stop string."""
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
        assert found.prompts == wanted.prompts
        assert found.usages[-1:] == wanted.usages[-1:]
        for index in (0, 1):
            told = [usage["completion_tokens"] for choice, usage in found.usages if choice == index]
            assert told == sorted(told)
