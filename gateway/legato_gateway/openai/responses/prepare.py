"""`POST /v1/responses`: from its body to a request of the relay, and to the writer of its answer."""

import msgspec
from msgspec import UNSET

from legato_gateway.errors import Unsupported
from legato_gateway.openai import bodies, chat, unsupported
from legato_gateway.openai.generation_response import PreparedRequest
from legato_gateway.openai.params import Asked
from legato_gateway.openai.responses import as_chat, head, items
from legato_gateway.openai.responses import body as body_of
from legato_gateway.openai.responses.body import ResponsesBody
from legato_gateway.openai.responses.items import Input
from legato_gateway.openai.responses.output import item_id
from legato_gateway.openai.responses.writer import ResponseWriter
from legato_gateway.openai.serving import ModelServing

_INPUT = msgspec.json.Decoder(Input)
_INSTRUCTIONS = msgspec.json.Decoder(str | None)


def prepare(serving: ModelServing, asked: Asked, raw: bytearray) -> PreparedRequest:
    """Checks and tokenizes, as for a chat. Raises what the client is told."""
    body = bodies.parse(ResponsesBody, raw)
    serving.check_model(body.model)
    body_of.check(body)
    if body.previous_response_id is not None:
        said = "previous_response_id is not supported by this server: it keeps no responses"
        raise Unsupported(said, param="previous_response_id")
    text, effort, metadata = body_of.text(body), body_of.effort(body), body_of.metadata(body)
    with as_chat.told_as_here():
        spelled = as_chat.chat_body(body, text, effort)
        unsupported.check_chat(spelled)
    instructions = _instructions(body)
    talk = items.conversation(instructions, (), bodies.decode(_INPUT, body.input, "input"))
    id = item_id("resp")
    with as_chat.told_as_here(talk.places):
        checked = chat.chat_request(serving, asked, id, spelled, talk.messages)
    params = checked.request.params
    logprobs = params.logprobs is not None
    if logprobs and not checked.format.is_plain:
        said = f"include: {body_of.LOGPROBS} is not supported by this server where an answer may be more than text"
        raise Unsupported(said, param="include")
    known = head.fields(id, serving.model, body, instructions, text, effort, metadata, params)
    return PreparedRequest(
        requests=(checked.request,),
        writer=ResponseWriter(known, logprobs, serving.tokens.token_bytes, checked.format),
        stream=bool(body.stream),
        explain=checked.request.explain,
        id=id,
        model=serving.model.name,
    )


def _instructions(body: ResponsesBody) -> str | None:
    return None if body.instructions is UNSET else bodies.decode(_INSTRUCTIONS, body.instructions, "instructions")
