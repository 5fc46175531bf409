"""Nothing is ignored: every field that the official client can send is known here."""

import msgspec
import pytest
from openai.types import completion_create_params as completion
from openai.types.chat import chat_completion_stream_options_param as stream_options
from openai.types.chat import completion_create_params as chat

from legato_gateway.openai import schemas


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (schemas.ChatBody, chat.CompletionCreateParamsStreaming),
        (schemas.CompletionBody, completion.CompletionCreateParamsStreaming),
        (schemas.StreamOptions, stream_options.ChatCompletionStreamOptionsParam),
    ],
)
def test_every_field_of_the_official_client_is_known(ours, theirs):
    fields = theirs.__required_keys__ | theirs.__optional_keys__
    assert {"model", "include_usage"} & fields, "these are the client's fields"
    assert fields <= {field.name for field in msgspec.structs.fields(ours)}
