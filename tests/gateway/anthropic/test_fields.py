"""Nothing is ignored: every field that the official client can send is known here."""

import typing

import msgspec
import pytest
from anthropic import types
from anthropic.types import message_count_tokens_params, message_create_params

from legato_gateway.anthropic import schemas

AS_ASKED = {"ToolChoiceAutoParam", "ToolChoiceAnyParam", "ToolChoiceToolParam", "ToolChoiceNoneParam"}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (schemas.MessagesBody, message_create_params.MessageCreateParamsStreaming),
        (schemas.CountTokensBody, message_count_tokens_params.MessageCountTokensParams),
        (schemas.Message, types.UserMessageParam),
        (schemas.TextBlock, types.TextBlockParam),
        (schemas.ToolUseBlock, types.ToolUseBlockParam),
        (schemas.ToolResultBlock, types.ToolResultBlockParam),
        (schemas.Tool, types.ToolParam),
        (schemas.OutputConfig, types.OutputConfigParam),
        (schemas.OutputFormat, types.JSONOutputFormatParam),
        *((schemas.ToolChoice, getattr(types, name)) for name in sorted(AS_ASKED)),
    ],
)
def test_every_field_of_the_official_client_is_known(ours: type[msgspec.Struct], theirs: type) -> None:
    fields = set(typing.get_type_hints(theirs))
    assert {"model", "type", "role", "format"} & fields, "these are the client's fields"
    assert fields <= {field.name for field in msgspec.structs.fields(ours)}


def test_sampling_that_the_older_version_has_is_known() -> None:
    known = {field.name for field in msgspec.structs.fields(schemas.MessagesBody)}
    assert {"temperature", "top_p", "top_k"} <= known
