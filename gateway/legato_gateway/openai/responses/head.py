"""The fields of a response that are known before its answer: the request as it was understood."""

import time
from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Raw, UnsetType

from legato_gateway.openai.responses.body import ResponsesBody, TextConfig
from legato_gateway.openai.responses.output import Fields
from legato_gateway.serving.model_serving import ServedModel
from legato_protocol.sampling.parameters import SamplingParams

_SHORT = 2048  # bytes of JSON: a limit for echoed values
_ECHOED = ("max_tool_calls", "prompt_cache_key", "safety_identifier")


def fields(
    id: str,
    model: ServedModel,
    body: ResponsesBody,
    instructions: str | None,
    text: TextConfig,
    effort: str | None,
    metadata: Mapping[str, str],
    stored: bool,
    params: SamplingParams,
) -> Fields:
    """Returns all fields except the outcome's. `params` are the sampling parameters with defaults."""
    return {
        "id": id,
        "object": "response",
        "created_at": int(time.time()),
        "model": model.name,
        "instructions": instructions,
        "previous_response_id": body.previous_response_id,
        "max_output_tokens": body.max_output_tokens,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "tools": _given(body.tools) or [],
        "tool_choice": _given(body.tool_choice) or "auto",
        "text": {"format": text.format or {"type": "text"}, "verbosity": "medium"},
        "reasoning": {"effort": effort, "summary": None},
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_logprobs": body.top_logprobs or 0,
        "truncation": "disabled",
        "metadata": metadata,
        "background": False,
        "store": stored,
        "service_tier": "default",
        **{name: _short(getattr(body, name)) for name in _ECHOED},
        "user": body.user,
    }


def _given(raw: Raw | UnsetType) -> Raw | None:
    """Returns a copy that does not keep the whole body alive."""
    return None if raw is UNSET or bytes(memoryview(raw)[:16]).strip() == b"null" else raw.copy()


def _short(raw: Raw | UnsetType) -> Any:
    """Returns the value if it is short. It has no effect and was not checked, so it may be anything."""
    given = _given(raw)
    return given if given is not None and memoryview(given).nbytes <= _SHORT else None
