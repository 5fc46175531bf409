"""Messages of `legato up` when a service starts and when it is ready."""

import json

from legato_operator.api.resources import InferenceService
from legato_operator.manifests.common import model_argument

QUESTION = "Name the capital of France."


def curl(url: str, model: str) -> str:
    """Returns a shell command that asks the model a question."""
    body = json.dumps({"model": model, "temperature": 0, "messages": [{"role": "user", "content": QUESTION}]})
    return f"curl -s {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'"


def starting(service: InferenceService) -> str:
    """Returns the message at the start."""
    return f"starting {service.metadata.name}: {model_argument(service)}, served as {service.served_name}"


def text(url: str, model: str, page: str) -> str:
    """Returns the message once the service is ready. `page` is the link to the UI."""
    return "\n".join(
        (
            "",
            "Try:",
            f"  {curl(url, model)}",
            "",
            f"{page} shows requests and workers. Ctrl-C stops the service.",
            f"Ready: {url} serves {model}",
        )
    )
