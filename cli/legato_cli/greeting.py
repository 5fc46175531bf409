"""What `legato up` prints once a service can be used."""

import json

QUESTION = "What is the capital of France?"


def curl(url: str, model: str) -> str:
    """A line for a shell that asks the model something."""
    body = json.dumps({"model": model, "temperature": 0, "messages": [{"role": "user", "content": QUESTION}]})
    return f"curl -s {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'"


def snippet(url: str, model: str) -> str:
    """The same with the official client."""
    return "\n".join(
        (
            "from openai import OpenAI",
            f'client = OpenAI(base_url="{url}/v1", api_key="unused")',
            f'messages = [{{"role": "user", "content": "{QUESTION}"}}]',
            "create = client.chat.completions.create",
            f'for chunk in create(model="{model}", messages=messages, temperature=0, stream=True):',
            '    print(chunk.choices[0].delta.content or "", end="", flush=True)',
        )
    )


def text(url: str, model: str) -> str:
    """All of it."""
    return f"\nReady: {url}\n\n{curl(url, model)}\n\n{snippet(url, model)}\n\nState: {url}/state    End: Ctrl-C\n"
