"""What a model reasons is an item of its own, before the message."""

from typing import Any

from tests.support.response_events import ask, events, kinds, replayed

from legato_gateway.request import Delta

SAID = "<think>\nLet me see.\n</think>\n\nParis."
SWITCH = "{{ enable_thinking }}<think>"
KINDS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.reasoning_text.delta",
    "response.reasoning_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


def say(gateway: Any, text: str, finish: str = "stop") -> None:
    gateway.script(*(Delta(0, char) for char in text), Delta(0, "", (), finish))


async def test_reasoning_comes_before_the_message(make: Any) -> None:
    gateway = make(template=SWITCH)
    say(gateway, SAID)
    answer = await gateway.client.responses.create(model="tiny", input="hi")
    reasoning, message = answer.output
    assert (reasoning.type, reasoning.status, reasoning.summary) == ("reasoning", "completed", [])
    assert [(part.type, part.text) for part in reasoning.content] == [("reasoning_text", "Let me see.")]
    assert (message.type, answer.output_text) == ("message", "Paris.")
    again = [item.model_dump() for item in answer.output]
    assert (await ask(gateway, input=[*again, {"role": "user", "content": "And?"}])).status_code == 200


async def test_reasoning_is_streamed(make: Any) -> None:
    gateway = make(template=SWITCH)
    say(gateway, SAID)
    found = await events(gateway)
    assert list(dict.fromkeys(kinds(found))) == list(dict.fromkeys(KINDS))
    grown = ("response.reasoning_text.delta", "response.output_text.delta")
    assert [k for k in kinds(found) if k not in grown] == [k for k in KINDS if k not in grown]
    done = replayed(found)
    assert [item["type"] for item in done] == ["reasoning", "message"]
    assert done == found[-1]["response"]["output"]


async def test_an_answer_may_be_cut_off_within_reasoning(make: Any) -> None:
    gateway = make(template=SWITCH)
    say(gateway, SAID[:12], "length")
    (item,) = replayed(found := await events(gateway))
    assert (item["type"], item["status"]) == ("reasoning", "incomplete")
    assert found[-1]["type"] == "response.incomplete"


async def test_effort_reaches_the_template(make: Any) -> None:
    gateway = make(template=SWITCH)
    assert (await ask(gateway, reasoning={"effort": "none"})).status_code == 200
    assert gateway.tokens.given == {"enable_thinking": False}
    error = (await ask(make(template="<think>"), reasoning={"effort": "low"})).json()["error"]
    assert error["param"] == "reasoning.effort"
    assert error["message"].startswith("reasoning.effort 'low' is not supported")


async def test_usage_tells_the_reasoning_tokens(make: Any) -> None:
    gateway = make(template=SWITCH)
    say(gateway, SAID)
    submit = gateway.relay.submit

    def counting(request: Any) -> Any:
        generation = submit(request)
        generation.usage.reasoning_tokens = 5
        return generation

    gateway.relay.submit = counting
    usage = (await ask(gateway)).json()["usage"]
    assert usage["output_tokens_details"] == {"reasoning_tokens": 5}
