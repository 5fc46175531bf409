# /// script
# requires-python = ">=3.11"
# dependencies = ["instructor>=1.17,<2", "openai>=2,<4"]
# ///
"""instructor: the modes that it has for servers like OpenAI's.

In `JSON` only the prompt tells the model of the schema, which the model of these tests cannot read: there, any object
will do. In `MD_JSON` and `PARALLEL_TOOLS` it is the model's choice whether there is an object or a call at all; this
one makes none.
"""

import sys

import instructor
import openai
from pydantic import BaseModel, ConfigDict

CAPITAL = [{"role": "user", "content": "Name the capital of France."}]
BY_GRAMMAR = ("TOOLS", "TOOLS_STRICT", "FUNCTIONS", "JSON_SCHEMA", "RESPONSES_TOOLS")


class City(BaseModel):
    name: str
    country: str


class Anything(BaseModel):
    model_config = ConfigDict(extra="allow")


def main(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")

    def ask(mode, model):
        chat = instructor.from_openai(client, mode=instructor.Mode[mode]).chat.completions
        settings = {"model": "smollm2", "temperature": 0, "max_tokens": 300, "max_retries": 0}
        return chat.create(messages=CAPITAL, response_model=model, **settings)

    for mode in BY_GRAMMAR:
        found = ask(mode, City)
        assert isinstance(found, City), (mode, found)
    assert isinstance(ask("JSON", Anything), Anything)


if __name__ == "__main__":
    main(sys.argv[1])
