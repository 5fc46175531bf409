"""Nothing is ignored: every field that the official client can send is known here."""

from typing import get_args

import msgspec
import pytest
from openai.types import completion_create_params as completion
from openai.types.chat import chat_completion_stream_options_param as stream_options
from openai.types.chat import completion_create_params as chat
from openai.types.responses import response_create_params, response_text_config_param
from openai.types.responses.response_includable import ResponseIncludable
from openai.types.shared_params import reasoning

from legato_gateway.openai import schemas
from legato_gateway.openai.responses import body as responses


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (schemas.ChatBody, chat.CompletionCreateParamsStreaming),
        (schemas.CompletionBody, completion.CompletionCreateParamsStreaming),
        (responses.ResponsesBody, response_create_params.ResponseCreateParamsStreaming),
        (responses.TextConfig, response_text_config_param.ResponseTextConfigParam),
        (responses.Reasoning, reasoning.Reasoning),
        (schemas.StreamOptions, response_create_params.StreamOptions),
        (schemas.StreamOptions, stream_options.ChatCompletionStreamOptionsParam),
    ],
)
def test_every_field_of_the_official_client_is_known(ours, theirs):
    fields = theirs.__required_keys__ | theirs.__optional_keys__
    assert {"model", "include_obfuscation", "format", "effort"} & fields, "these are the client's fields"
    assert fields <= {field.name for field in msgspec.structs.fields(ours)}


def test_all_that_the_official_client_can_ask_to_be_included_is_known():
    assert set(get_args(ResponseIncludable)) == set(responses.INCLUDABLE)
