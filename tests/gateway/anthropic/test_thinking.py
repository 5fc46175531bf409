"""What a model reasons, as Anthropic's official client sees it."""

from typing import Any

import anthropic
import pytest

from legato_gateway.request import Delta

TEMPLATE = "{{ enable_thinking }} <think></think>"
HI: Any = [{"role": "user", "content": "hi"}]
ASKED: Any = {"model": "tiny", "max_tokens": 50, "messages": HI}


@pytest.fixture
def gateway(make: Any) -> Any:
    made = make(template=TEMPLATE)
    made.script(Delta(0, "<think>\nso, "), Delta(0, "Paris</thi"), Delta(0, "nk>\n\nPar"), Delta(0, "is.", (), "stop"))
    return made


@pytest.fixture
def client(gateway: Any, connect: Any) -> anthropic.AsyncAnthropic:
    return connect(gateway)


async def test_it_is_a_block_of_its_own_streamed_or_not(gateway, client):
    whole = await client.messages.create(**ASKED)
    assert [block.type for block in whole.content] == ["thinking", "text"]
    assert (whole.content[0].thinking, whole.content[1].text) == ("so, Paris", "Paris.")
    async with client.messages.stream(**ASKED) as stream:
        kinds = [event.type async for event in stream]
        streamed = await stream.get_final_message()
    assert [block.model_dump() for block in streamed.content] == [block.model_dump() for block in whole.content]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 2


@pytest.mark.parametrize(
    ("thinking", "switched", "told"),
    [
        (None, None, True),
        ({"type": "disabled"}, False, True),
        ({"type": "adaptive"}, True, True),
        ({"type": "adaptive", "display": "omitted"}, True, False),
        ({"type": "enabled"}, True, True),
    ],
)
async def test_it_is_switched_in_the_chat_template(gateway, client, thinking, switched, told):
    answer = await client.messages.create(**ASKED, extra_body={"thinking": thinking} if thinking else {})
    assert gateway.tokens.given.get("enable_thinking") is switched
    assert [block.type for block in answer.content] == (["thinking", "text"] if told else ["text"])


async def test_earlier_thinking_goes_back_to_the_template(gateway, client):
    answer = await client.messages.create(**ASKED)
    turns = [*HI, {"role": "assistant", "content": answer.content}, *HI]
    await client.messages.create(**{**ASKED, "messages": turns}, extra_body={"output_config": {"effort": "low"}})
    said = gateway.tokens.messages[1]
    assert (said["content"], said["reasoning_content"]) == ("Paris.", "so, Paris")
    assert gateway.tokens.given["enable_thinking"] is True
