"""The fields of a response that are known before its answer: what was asked for, as it was understood."""

import time
from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Raw, UnsetType

from legato_gateway.openai.responses.body import ResponsesBody, TextConfig
from legato_gateway.openai.responses.output import Fields
from legato_gateway.serving.model_serving import ServedModel
from legato_protocol.sampling_params import SamplingParams

_SHORT = 2048  # bytes of JSON: no value of these has more
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
    """All but those of the outcome. `params` are what it is sampled with, defaults included."""
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
    """A copy, which does not keep the whole body."""
    return None if raw is UNSET or bytes(memoryview(raw)[:16]).strip() == b"null" else raw.copy()


def _short(raw: Raw | UnsetType) -> Any:
    """What changes no answer is not checked either, so it may be anything."""
    found = _given(raw)
    return found if found is not None and memoryview(found).nbytes <= _SHORT else None
