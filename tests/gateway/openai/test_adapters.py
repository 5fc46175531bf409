"""Adapters as clients see them: models beside the one that is served."""

from typing import Any

import openai
import pytest


@pytest.fixture
def adapted(make: Any) -> Any:
    return make(adapters=lambda: ("sql", "team/law"))


async def test_they_are_listed_with_the_model_that_they_adapt(adapted: Any) -> None:
    listed = (await adapted.http.get("/v1/models")).json()["data"]
    assert [(model["id"], model["root"], model["parent"]) for model in listed] == [
        ("tiny", "tiny", None),
        ("sql", "tiny", "tiny"),
        ("team/law", "tiny", "tiny"),
    ]
    assert (await adapted.client.models.retrieve("team/law")).id == "team/law"


@pytest.mark.parametrize("name", ["tiny", "sql", "team/law"])
async def test_requests_and_answers_name_the_one_that_was_asked_for(adapted: Any, name: str) -> None:
    assert (await adapted.chat(model=name)).json()["model"] == name
    assert (await adapted.complete(model=name)).json()["model"] == name
    chunks = (await adapted.chat(model=name, stream=True)).text
    assert f'"model":"{name}"' in chunks
    assert {request.model for request in adapted.relay.requests} == {name}
    assert {entry.model for entry in adapted.entries} == {name}


async def test_who_names_none_means_the_model(adapted: Any) -> None:
    answer = await adapted.http.post("/v1/completions", json={"prompt": "hi"})
    assert answer.json()["model"] == "tiny"
    assert adapted.relay.requests[-1].model == ""


async def test_others_are_not_found(adapted: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="'chess' does not exist; 'tiny', 'sql', 'team/law' do") as caught:
        await adapted.client.completions.create(model="chess", prompt="hi")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


async def test_other_apis_ask_for_the_adapter_too(adapted: Any) -> None:
    response = await adapted.http.post("/v1/responses", json={"model": "sql", "input": "hi"})
    assert response.status_code == 200, response.text
    assert response.json()["model"] == "sql"
    said = {"model": "sql", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    message = await adapted.http.post("/v1/messages", json=said, headers={"anthropic-version": "2023-06-01"})
    assert message.json()["model"] == "sql"
    assert [request.model for request in adapted.relay.requests] == ["sql", "sql"]
    assert {entry.model for entry in adapted.entries} == {"sql"}
