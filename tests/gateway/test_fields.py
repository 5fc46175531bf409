"""Every field that an official client can send is known. What becomes of it is in test_request_fields."""

from typing import get_args, get_type_hints

import msgspec
import pytest
from anthropic import types as messages
from anthropic.types import beta, message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_counting
from anthropic.types.beta import message_create_params as beta_creating
from openai.types import completion_create_params as completion
from openai.types.chat import chat_completion_stream_options_param as stream_options
from openai.types.chat import completion_create_params as chat
from openai.types.responses import input_token_count_params, response_create_params, response_text_config_param
from openai.types.responses.response_includable import ResponseIncludable
from openai.types.shared_params import reasoning

from legato_gateway.anthropic import schemas as anthropic
from legato_gateway.openai import schemas as openai
from legato_gateway.openai.responses import body as responses

BODIES = {
    openai.ChatBody: chat.CompletionCreateParamsStreaming,
    openai.CompletionBody: completion.CompletionCreateParamsStreaming,
    responses.ResponsesBody: response_create_params.ResponseCreateParamsStreaming,
    responses.InputTokensBody: input_token_count_params.InputTokenCountParams,
    responses.TextConfig: response_text_config_param.ResponseTextConfigParam,
    responses.Reasoning: reasoning.Reasoning,
    anthropic.MessagesBody: message_create_params.MessageCreateParamsStreaming,
    anthropic.CountTokensBody: message_count_tokens_params.MessageCountTokensParams,
    anthropic.MessageParam: messages.UserMessageParam,
    anthropic.TextBlock: messages.TextBlockParam,
    anthropic.ToolUseBlock: messages.ToolUseBlockParam,
    anthropic.ToolResultBlock: messages.ToolResultBlockParam,
    anthropic.ToolParam: messages.ToolParam,
    anthropic.OutputConfig: messages.OutputConfigParam,
    anthropic.OutputFormat: messages.JSONOutputFormatParam,
}
OPTIONS = (response_create_params.StreamOptions, stream_options.ChatCompletionStreamOptionsParam)
CHOICES = [getattr(messages, f"ToolChoice{kind}Param") for kind in ("Auto", "Any", "Tool", "None")]
PAIRS = [*BODIES.items(), *((openai.StreamOptions, each) for each in OPTIONS)]
PAIRS += [
    *((anthropic.ToolChoice, each) for each in CHOICES),
    *((anthropic.Thinking, getattr(beta, f"BetaThinkingConfig{kind}Param")) for kind in ("Enabled", "Adaptive")),
    (anthropic.MessagesBody, beta_creating.MessageCreateParamsStreaming),
    (anthropic.CountTokensBody, beta_counting.MessageCountTokensParams),
    (anthropic.OutputConfig, beta.BetaOutputConfigParam),
    (anthropic.ToolReferenceBlock, beta.BetaToolReferenceBlockParam),
]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_every_field_of_the_official_client_is_known(ours, theirs):
    fields, some = set(get_type_hints(theirs)), {"model", "type", "role", "format", "effort", "include_obfuscation"}
    assert some & fields, "these are the client's fields"
    fields -= {"betas"}  # a header
    fields |= {"temperature", "top_p", "top_k"} if ours is anthropic.MessagesBody else set()  # its older version's
    assert fields <= {field.name for field in msgspec.structs.fields(ours)}


def test_all_that_the_official_client_can_ask_to_be_included_is_known():
    assert set(get_args(ResponseIncludable)) == set(responses.INCLUDABLE)
