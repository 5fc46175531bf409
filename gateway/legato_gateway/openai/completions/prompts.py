"""The prompts of a completion: one text, one list of token ids, or a list of texts or of such lists.

They may be long, so the first element decides their type, and they are counted before any is decoded.
"""

import re
from itertools import islice

import msgspec
from msgspec import Raw

from legato_gateway.errors import BadRequest
from legato_gateway.openai.schemas import Texts, TokenIdLists, TokenIds
from legato_gateway.serving.bodies import parsing
from legato_gateway.serving.model_serving import too_long
from legato_protocol.sampling.limits import MAX_CHOICES

MAX_TRUNCATED = 1 << 20  # ids of all prompts, before truncation
Prompt = str | tuple[int, ...]

_FIRST = re.compile(rb"\[\s*(.)", re.DOTALL)
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_TEXT = msgspec.json.Decoder(str)
_IDS = msgspec.json.Decoder(TokenIds)
_TEXTS = msgspec.json.Decoder(Texts)
_ID_LISTS = msgspec.json.Decoder(TokenIdLists)


def prompts(raw: Raw, context: int, truncates: bool = False) -> tuple[Prompt, ...]:
    """Returns the prompts as a tuple, also if there is only one.

    Raises BadRequest, and ContextLengthExceeded for more ids than `context`, or with `truncates` for more than are
    read.
    """
    json = bytes(raw)
    if json[:1] == b'"':
        return (parsing.decode(_TEXT, raw, "prompt"),)
    first = _FIRST.match(json)
    if first is None:
        raise BadRequest("prompt is neither text nor a list of texts or token ids", param="prompt")
    if first[1] == b'"':
        _check_count(sum(1 for _ in islice(_STRING.finditer(json), MAX_CHOICES + 1)))
        return parsing.decode(_TEXTS, raw, "prompt")
    if first[1] == b"[":
        count = json.count(b"[") - 1
        _check_count(count)
        _check_length(json.count(b",") + 1, context, count, truncates)
        return parsing.decode(_ID_LISTS, raw, "prompt")
    if first[1] in b"-0123456789":
        _check_length(json.count(b",") + 1, context, 1, truncates)
    return (parsing.decode(_IDS, raw, "prompt"),)


def _check_count(count: int) -> None:
    if count > MAX_CHOICES:
        raise BadRequest(f"there are more than {MAX_CHOICES} prompts", param="prompt")


def _check_length(count: int, context: int, prompts: int, truncates: bool) -> None:
    if count > max(prompts * context, MAX_TRUNCATED if truncates else 0):
        of = "the prompt" if prompts == 1 else f"{prompts} prompts"
        raise too_long(context, f"there are {count} tokens of {of}", "prompt")
