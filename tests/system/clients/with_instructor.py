# /// script
# requires-python = ">=3.11"
# dependencies = ["instructor>=1.17,<2", "openai>=2,<4"]
# ///
"""instructor: the modes that it has for servers like OpenAI's.

In `MD_JSON` and `PARALLEL_TOOLS` it is the model's choice whether there is an object or a call at all; this one makes
none.
"""

import instructor
import openai
from shared import CAPITAL, GREEDY, KEY, MODEL, URL, Anything, City

client = openai.OpenAI(base_url=URL, api_key=KEY)
BY_GRAMMAR = ("TOOLS", "TOOLS_STRICT", "FUNCTIONS", "JSON_SCHEMA", "RESPONSES_TOOLS")
for name, model in [*((name, City) for name in BY_GRAMMAR), ("JSON", Anything)]:
    create = instructor.from_openai(client, mode=instructor.Mode[name]).chat.completions.create
    messages = [{"role": "user", "content": CAPITAL}]
    answer = create(messages=messages, response_model=model, model=MODEL, max_retries=0, **GREEDY | {"max_tokens": 300})
    assert isinstance(answer, model), (name, answer)
