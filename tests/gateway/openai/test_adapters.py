"""Adapters as clients see them: models beside the one that is served."""

from typing import Any

import openai
import pytest


@pytest.fixture
def adapted(make: Any) -> Any:
    return make(adapters=lambda: ("sql", "team/law"))


async def test_they_are_listed_with_the_model_that_they_adapt(adapted):
    listed = (await adapted.http.get("/v1/models")).json()["data"]
    assert [(model["id"], model["root"], model["parent"]) for model in listed] == [
        ("tiny", "tiny", None),
        ("sql", "tiny", "tiny"),
        ("team/law", "tiny", "tiny"),
    ]
    assert {(model["object"], model["created"], model["owned_by"]) for model in listed} == {("model", 7, "legato")}
    assert (await adapted.client.models.retrieve("team/law")).id == "team/law"


async def test_who_names_none_means_the_model(adapted):
    answer = await adapted.http.post("/v1/completions", json={"prompt": "hi"})
    assert answer.json()["model"] == "tiny"
    assert adapted.relay.requests[-1].model == ""


async def test_others_are_not_found(adapted):
    with pytest.raises(openai.NotFoundError, match="'chess' does not exist; 'tiny', 'sql', 'team/law' do") as caught:
        await adapted.client.completions.create(model="chess", prompt="hi")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
