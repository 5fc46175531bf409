"""The Responses API on real workers, prefill and decode apart, for the official client."""

from typing import Annotated, Any, Literal

import openai
from pydantic import BaseModel, Field

STORY = " ".join(f"Chapter {i}: the fox counted {i * 37 % 101} stones." for i in range(12))


class Fox(BaseModel):
    name: Annotated[str, Field(max_length=12)]
    mood: Literal["glad", "tired"]


class GetWeather(BaseModel):
    """The weather of a city."""

    city: Annotated[str, Field(max_length=12)]


def test_an_answer_is_that_of_the_same_chat(service: Any) -> None:
    asked: Any = {"model": "smollm2", "temperature": 0}
    question = f"{STORY} What is the capital of France?"
    said = [{"role": "system", "content": "Answer in one word."}, {"role": "user", "content": question}]
    chat = service.client.chat.completions.create(messages=said, max_completion_tokens=20, **asked)
    asked |= {"instructions": "Answer in one word.", "input": question, "max_output_tokens": 20}
    answer = service.client.responses.create(**asked)
    assert answer.output_text == chat.choices[0].message.content
    assert answer.usage.input_tokens == chat.usage.prompt_tokens
    assert answer.usage.input_tokens_details.cached_tokens > 0
    record = service.record(answer.id)
    assert record["decode"]
    with service.client.responses.stream(**asked) as stream:
        events = list(stream)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    final = events[-1].response
    assert len(deltas) > 1
    assert "".join(deltas) == final.output_text == answer.output_text
    service.until_idle()


def test_a_conversation_goes_on_with_the_items_of_its_answers(service: Any) -> None:
    asked: Any = {"model": "smollm2", "temperature": 0, "max_output_tokens": 12}
    first = service.client.responses.create(input="My name is Ada.", **asked)
    items: Any = [{"role": "user", "content": "My name is Ada."}, *(item.to_dict() for item in first.output)]
    second = service.client.responses.create(input=[*items, {"role": "user", "content": "What is my name?"}], **asked)
    messages = [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "What is my name?"},
    ]
    chat = service.client.chat.completions.create(model="smollm2", messages=messages, temperature=0, max_tokens=12)
    assert second.output_text == chat.choices[0].message.content


def test_parse_gives_the_model(service: Any) -> None:
    asked: Any = {"model": "smollm2", "input": f"{STORY} Describe the fox as JSON.", "text_format": Fox}
    answer = service.client.responses.parse(**asked, temperature=1.0, extra_body={"seed": 3})
    assert isinstance(answer.output_parsed, Fox)
    assert service.record(answer.id)["prefill"]
    with service.client.responses.stream(**asked, temperature=0) as stream:
        assert isinstance(stream.get_final_response().output_parsed, Fox)
    service.until_idle()


def test_a_required_call_is_made_with_arguments_of_its_schema(service: Any) -> None:
    tools: Any = [openai.pydantic_function_tool(GetWeather)["function"] | {"type": "function"}]
    asked: Any = {"model": "smollm2", "input": "Hello!", "tools": tools, "tool_choice": "required", "temperature": 0}
    asked["max_output_tokens"] = 100
    made = [item for item in service.client.responses.parse(**asked).output if item.type == "function_call"]
    assert made
    assert all(GetWeather.model_validate_json(call.arguments) for call in made)
    with service.client.responses.stream(**asked) as stream:
        streamed = stream.get_final_response().output
    assert [call.arguments for call in streamed] == [call.arguments for call in made]
    result = {"type": "function_call_output", "call_id": made[0].call_id, "output": "It rains."}
    items: Any = [{"role": "user", "content": "Hello!"}, made[0].to_dict(), result]
    after = service.client.responses.create(model="smollm2", input=items, tools=tools, max_output_tokens=10)
    assert after.usage.input_tokens > 0
    service.until_idle()
