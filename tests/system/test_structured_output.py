"""Structured output on real workers, prefill and decode apart, for the official client: of a model that was never
trained to write it, or to call a tool. Grammars have their tests in tests/grammar and tests/engine/grammars."""

import json
from typing import Annotated, Any, Literal

import budget
import openai
import random_schemas
from pydantic import BaseModel, Field

STORY = "A form. " + " ".join(f"Chapter {i}: the fox counted {i * 37 % 101} stones." for i in range(12))
QUESTION = [{"role": "user", "content": f"{STORY} Describe the fox as JSON."}]
SCHEMAS = budget.times(12)


class Fox(BaseModel):
    name: Annotated[str, Field(max_length=12)]
    mood: Literal["glad", "tired"]
    stones: Annotated[list[Annotated[int, Field(ge=0, le=100)]], Field(min_length=6, max_length=8)]


class GetWeather(BaseModel):
    """The weather of a city."""

    city: Annotated[str, Field(max_length=12)]
    unit: Literal["C", "F"]


def test_parse_gives_the_model(service: Any) -> None:
    answers = []
    for options in ({"temperature": 0}, {"temperature": 1.0, "seed": 3}):
        answer = service.client.chat.completions.parse(
            model="smollm2", messages=QUESTION, response_format=Fox, max_tokens=600, **options
        )
        (choice,) = answer.choices
        assert choice.finish_reason == "stop"
        assert isinstance(choice.message.parsed, Fox)
        answers.append(answer)
    assert service.record(answers[0].id)["prefill"] not in ("", "local"), "the second is decided by what is cached"
    service.until_idle()


def test_answers_of_random_schemas_that_end_are_valid(service: Any) -> None:
    """Many at once. `benchmarks/structured_random.py` does that with 500 of them, and disturbances."""
    schemas = random_schemas.supported(SCHEMAS, seed=7)
    streams = [
        service.stream(
            f"JSON of the schema {json.dumps(schema)[:400]}:\n",
            max_tokens=200,
            temperature=(0.0, 0.8)[seed % 2],
            seed=seed,
            extra_body={"structured_outputs": {"json": schema}},
        )
        for seed, schema in enumerate(schemas)
    ]
    answers = [(schema, stream.result(), stream.finish) for schema, stream in zip(schemas, streams, strict=True)]
    assert {finish for *_, finish in answers} <= {"stop", "length"}
    whole = [(schema, text) for schema, text, finish in answers if finish == "stop"]
    for schema, text in whole:
        random_schemas.check(schema, text)
    assert len(whole) >= SCHEMAS // 2
    service.until_idle()


def test_a_required_call_is_made_with_arguments_of_its_schema(service: Any) -> None:
    asked: Any = {"model": "smollm2", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 200}
    asked |= {"tools": [openai.pydantic_function_tool(GetWeather)], "tool_choice": "required", "temperature": 0}
    answer = service.client.chat.completions.parse(**asked, parallel_tool_calls=False)
    calls = answer.choices[0].message.tool_calls
    assert calls
    assert all(isinstance(call.function.parsed_arguments, GetWeather) for call in calls)
    assert answer.choices[0].finish_reason == "tool_calls"
    with service.client.chat.completions.stream(**asked, parallel_tool_calls=False) as stream:
        streamed = stream.get_final_completion().choices[0].message.tool_calls
    assert [call.function.arguments for call in streamed] == [call.function.arguments for call in calls]
    service.until_idle()
