"""What `legato up` prints when it starts a service, and when that can be used."""

import json

from legato_operator.api.resources import InferenceService
from legato_operator.manifests.common import model_argument

QUESTION = "Name the capital of France."


def curl(url: str, model: str) -> str:
    """A line for a shell that asks the model something."""
    body = json.dumps({"model": model, "temperature": 0, "messages": [{"role": "user", "content": QUESTION}]})
    return f"curl -s {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'"


def starting(service: InferenceService) -> str:
    """What is being started."""
    return f"starting {service.metadata.name}: {model_argument(service)}, served as {service.served_name}"


def text(url: str, model: str, page: str) -> str:
    """What can be done now, and as its last line that the service is ready. `page` is the link to the UI."""
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
