"""Structured output on real workers, prefill and decode apart, for the official client: of a model that was never
trained to write it, or to call a tool. Grammars have their tests in tests/grammar and tests/engine/grammars."""

import json
import re
from typing import Annotated, Any, Literal

import budget
import jsonschema
import openai
import pytest
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


def test_streams_and_choices_match_too(service: Any) -> None:
    chunks = service.client.chat.completions.create(
        model="smollm2",
        messages=QUESTION,
        n=3,
        seed=7,
        stream=True,
        max_tokens=100,
        extra_body={"structured_outputs": {"regex": "(fox|owl){2,3} [0-9]{3}"}},
    )
    texts, ends = dict.fromkeys(range(3), ""), dict[int, str]()
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        texts[choice.index] += choice.delta.content or ""
        ends |= {choice.index: choice.finish_reason} if choice.finish_reason else {}
    assert set(ends.values()) == {"stop"}
    for text in texts.values():
        jsonschema.validate(text, {"pattern": "^(fox|owl){2,3} [0-9]{3}$"})


def test_log_probabilities_are_among_what_the_grammar_allows(service: Any) -> None:
    answer = service.client.chat.completions.create(
        model="smollm2", messages=QUESTION, logprobs=True, top_logprobs=3, extra_body={"guided_choice": ["x1", "x2"]}
    )
    first = answer.choices[0].logprobs.content[0]
    assert answer.choices[0].message.content in ("x1", "x2")
    assert first.logprob > -1.2, "x, or one of the two in one token"
    assert all(entry.token in ("x", "x1", "x2") or entry.logprob < -999 for entry in first.top_logprobs)


def test_tags_hold_what_has_to_match(service: Any) -> None:
    """Text, a tag that is required, and text again; the older form as well as the newer one."""
    begin, end, schema = "<fox=", "</fox>", {**Fox.model_json_schema(), "additionalProperties": False}
    tag = {"begin": "<fox=red>", "content": {"type": "json_schema", "json_schema": schema}, "end": end}
    triggered = {"type": "triggered_tags", "triggers": [begin], "tags": [tag], "stop_after_first": True}
    thought = {"type": "tag", "begin": "I think", "content": {"type": "regex", "pattern": "[a-z ]{0,40}"}, "end": ": "}
    required = {"type": "sequence", "elements": [thought, {**triggered, "at_least_one": True}]}
    asked: Any = {"model": "smollm2", "messages": QUESTION, "max_tokens": 400, "temperature": 0.7, "seed": 5}
    answer = service.client.chat.completions.create(
        **asked, response_format={"type": "structural_tag", "format": required}
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    said = choice.message.content
    assert said.startswith("I think")
    assert said.endswith(end)
    Fox.model_validate_json(said[said.index("<fox=red>") + len("<fox=red>") : -len(end)])
    older = {"structures": [{"begin": "e", "schema": {"enum": ["x"]}, "end": ";"}], "triggers": ["e"]}
    body = {"structured_outputs": {"structural_tag": json.dumps(older)}}
    text = service.stream(STORY, max_tokens=60, temperature=1.0, seed=2, extra_body=body).result()
    assert "e" in text
    assert re.fullmatch(r'([^e]|e"x";)*(e("(x("?)?)?)?)?', text), text
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


def test_a_schema_that_cannot_be_obeyed_is_a_bad_request_with_the_place_in_it(service: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    format = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}
    with pytest.raises(openai.BadRequestError, match=r"at \$.properties.a: .*uniqueItems") as refused:
        service.client.chat.completions.create(model="smollm2", messages=QUESTION, response_format=format)
    assert refused.value.param == "response_format.json_schema.schema"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "GetWeather"}}])
def test_a_required_call_is_made_with_arguments_of_its_schema(service: Any, choice: Any) -> None:
    asked: Any = {"model": "smollm2", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 200}
    asked |= {"tools": [openai.pydantic_function_tool(GetWeather)], "tool_choice": choice, "temperature": 0}
    answer = service.client.chat.completions.parse(**asked, parallel_tool_calls=False)
    made = answer.choices[0].message.tool_calls
    assert made
    assert all(isinstance(call.function.parsed_arguments, GetWeather) for call in made)
    assert answer.choices[0].finish_reason == "tool_calls"
    with service.client.chat.completions.stream(**asked, parallel_tool_calls=False) as stream:
        streamed = stream.get_final_completion().choices[0].message.tool_calls
    assert [call.function.arguments for call in streamed] == [call.function.arguments for call in made]
    service.until_idle()
