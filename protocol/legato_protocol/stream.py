"""Frames between gateway and worker on `/stream`, and how they are encoded.

The first frame in each direction is a greeting (`Greeting` from the gateway, `Hello` from the worker); both carry the
versions that their sender understands, and a side that has none in common with them closes. Within a version, messages
only grow: fields are appended, and an older reader skips them; a frame of a kind that it does not know it skips too. So
gateways and workers of two releases work together during an upgrade (`docs/architecture.md`, Versions).

After the greetings, many requests share the connection. Every frame about a request names it by `id` and `attempt`;
only the gateway raises `attempt`. `id` is the gateway's own: it may stand for all choices of a request
(`Sequence.choices`) or, after a failure or a `Split`, for one of them.

All durations are seconds left from now: clocks of two machines are never compared.
"""

from typing import Literal

import msgspec

from legato_protocol.load import Load
from legato_protocol.messages import BadFrame, Count, Measure, Message, Size, Token, UnknownKind, Value, decode_with
from legato_protocol.packed_logprobs import PackedLogprobs
from legato_protocol.sampling_params import SamplingParams

VERSION = 2  # grows with whatever an older reader must not skip
OLDEST = 2  # version understood; at least that of the last release

Role = Literal["prefill", "decode", "unified"]
Finish = Literal["stop", "length"]
Part = Literal["gateway", "prefill", "decode", "transfer"]
FailureCode = Literal[
    "invalid",  # the worker cannot serve such a request; permanent
    "overloaded",  # no room now; temporary
    "deadline",  # its time ran out
    "transfer",  # KV could not be handed over
    "peer_lost",  # the other worker of the pair died or was replaced
    "draining",  # this worker takes nothing new
    "stale",  # meant for another epoch of this worker
    "internal",  # a fault of ours
    "faulted",  # nothing could be sampled for it: its own logits were not finite
]

# ── what a sequence is ──────────────────────────────────────────────────────────────────────────────────────────────


class Sequence(Value, frozen=True):
    """A sequence as far as it is known: the prompt, then every token already sent to the client.

    `token_ids` are little-endian int32 (`pack_tokens`). More than `prompt_len` of them means that output exists
    already: the worker continues at output index `len(token_ids)/4 - prompt_len`, and penalties, limits and random
    numbers continue by absolute position. Only a sequence with no output may stand for several choices.
    """

    token_ids: bytes
    prompt_len: int
    params: SamplingParams
    deadline: float
    choices: tuple[int, ...] = (0,)
    priority: int = 0  # higher goes first
    tenant: str = ""
    cache_salt: str = ""
    adapter: str = ""  # the digest of one of `Hello.adapters`; empty: the model alone
    trace: str = ""  # W3C traceparent of the attempt; empty: it is not traced


class Peer(Value, frozen=True):
    """A worker as another worker reaches it: `address` is its link's own (see `Hello.address`), `tls` its
    `Hello.handoff_tls`."""

    worker: str
    epoch: str
    address: bytes
    tls: bool = False


# ── gateway → worker ────────────────────────────────────────────────────────────────────────────────────────────────


class Greeting(Message, tag="greet", frozen=True):
    """First frame of a gateway on `/stream` and on `/events`."""

    gateway: str
    version: int = VERSION
    oldest: int = 0  # version understood; 0: `version` alone


class Generate(Message, tag="gen", frozen=True):
    """Prefill (or recompute) and decode this sequence here."""

    id: str
    attempt: int
    sequence: Sequence


class Prefill(Message, tag="pre", frozen=True):
    """Compute this sequence's KV and first token, and hand it to `to` under `room`."""

    id: str
    attempt: int
    room: int
    sequence: Sequence
    to: Peer


class Decode(Message, tag="dec", frozen=True):
    """Expect this sequence from `source` under `room`; send every token from the known ones on.

    The tokens sent begin at the first one that `sequence.token_ids` does not hold, also when `source` had sampled
    (and perhaps sent) more: the gateway drops what it has already.
    """

    id: str
    attempt: int
    room: int
    sequence: Sequence
    source: Peer


class Handoff(Message, tag="hand", frozen=True):
    """Move this running sequence to `to` under `room`. `attempt` is the new one, which `to` was told in `Decode`.

    Until the receiver commits, the sender keeps the sequence and, if the move fails, goes on under the old attempt.
    """

    id: str
    attempt: int
    room: int
    to: Peer


class Cancel(Message, tag="cancel", frozen=True):
    """Stop all work of this id at this and every lower attempt, and free its blocks. Unknown ids are no error.

    With `choices` only the work for these, and the others go on. Until its first token all of an id's choices are one
    sequence, which is not stopped for some of them.
    """

    id: str
    attempt: int
    choices: tuple[int, ...] = ()


class Split(Message, tag="split", frozen=True):
    """Know the running sequence of each of these choices by an id of its own from here on; the attempt stays.

    So each can be handed off and ended alone. Frames on their way still name the old id. Unknown ids and choices are no
    error, and neither are choices without a token: these are one sequence still, under the old id.
    """

    id: str
    attempt: int
    names: dict[int, str]


class Pause(Message, tag="pause", frozen=True):
    """Stop (or, with `on=False`, go on) making tokens: the client reads too slowly."""

    id: str
    attempt: int
    on: bool


ToWorker = Greeting | Generate | Prefill | Decode | Handoff | Cancel | Split | Pause


# ── worker → gateway ────────────────────────────────────────────────────────────────────────────────────────────────


class Hello(Message, tag="hello", frozen=True):
    """Who this worker is. Sent first, and again when its core was restarted (a new epoch: all it held is gone) or when
    it has other adapters (the same epoch: all else is as it was)."""

    worker: str
    epoch: str
    role: Role
    kv_revision: str  # workers of equal KV revision may exchange KV and continue each other's sequences
    weights: str  # fingerprint of the weights
    layout: str  # KV layout, readable
    block_size: Size
    num_blocks: Size
    max_length: Size
    address: bytes  # of its link; empty when it has none
    transport: str  # what carries hand-offs here, e.g. "ucx:tcp"
    pod_revision: str = ""
    version: int = VERSION
    model: str = ""  # `model_digest.of` what it loaded: a gateway of another model takes ids for other words
    oldest: int = 0  # version understood; 0: `version` alone
    grammars: tuple[str, ...] = ()  # kinds of grammar that it makes output match
    params: tuple[str, ...] = ()  # of `LATER_PARAMS`, or a later version's, those that it obeys
    adapters: dict[str, str] = {}  # digest of each adapter that it can compute with, by name
    handoff_tls: bool = False  # whether its link takes TLS, so that those who have it too use it
    former_adapters: tuple[str, ...] = ()  # digests of those that others took the names of: for what began with them


class TopLogprob(Value, frozen=True):
    token: Token
    logprob: float


class TokenLogprobs(Value, frozen=True):
    """`logprob` of the sampled token and its best alternatives, best first."""

    logprob: float
    top: tuple[TopLogprob, ...] = ()


class TokenItem(Value, frozen=True):
    """New tokens of one choice. `index` is the output position of the first one (0 follows the prompt)."""

    id: str
    attempt: Count
    choice: Count
    index: Count
    token_ids: tuple[Token, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish: Finish | None = None
    cached_tokens: Count = 0  # prompt tokens that needed no computing (wherever it was prefilled)
    preemptions: Count = 0  # so far, in this attempt
    reserved_blocks: Count = 0  # KV blocks reserved when it began; of several choices, the first has the sum
    peak_blocks: Count = 0  # largest number of KV blocks of the choice so far, without those shared with the first


class Tokens(Message, tag="tok", frozen=True):
    """All that one step made for this gateway: one frame per step."""

    items: tuple[TokenItem, ...]


class PromptLogprobs(Message, tag="scored", frozen=True):
    """Logprobs of the tokens of a prompt from place `start` on, told by the worker that computes it, chunk by chunk.

    The first token has none. All are told before the first token that the same worker tells; of a pair, the prefill
    worker tells them, and tokens that the other one tells may overtake them. Of a preempted prompt some may be told
    again.
    """

    id: str
    attempt: Count
    start: Size
    logprobs: PackedLogprobs


class Started(Message, tag="began", frozen=True):
    """This attempt has its first part in the step about to run here: should the step end this worker, it may be why."""

    id: str
    attempt: Count


class HandoffReport(Message, tag="moved", frozen=True):
    """The receiver of a hand-off committed it (one per room)."""

    id: str
    attempt: Count
    room: int
    source: str
    blocks: Count  # that travelled
    cached_blocks: Count  # that the receiver had already
    bytes: Count
    seconds: Measure  # from grant to commit
    boundary: Measure  # seconds for which the sequence stood still: from its last step there to its emission here
    transport: str


class Failed(Message, tag="fail", frozen=True):
    """This attempt ended without its tokens. `part` says where; `retry` whether another worker may succeed."""

    id: str
    attempt: Count
    code: FailureCode
    message: str
    part: Part
    retry: bool


class _LaterFailed(Message, tag="fail", frozen=True):
    """`Failed` with a code that this version does not know."""

    id: str
    attempt: Count
    code: str
    message: str
    part: Part
    retry: bool


class Lost(Message, tag="lost", frozen=True):
    """The core of this epoch died: everything it held is gone. A `Hello` with a new epoch follows when it is back."""

    epoch: str
    reason: str


FromWorker = Hello | Started | PromptLogprobs | Tokens | Load | HandoffReport | Failed | Lost


# ── encoding ────────────────────────────────────────────────────────────────────────────────────────────────────────

_encoder = msgspec.msgpack.Encoder()
_to_worker: "msgspec.msgpack.Decoder[ToWorker]" = msgspec.msgpack.Decoder(ToWorker)
_from_worker: "msgspec.msgpack.Decoder[FromWorker]" = msgspec.msgpack.Decoder(FromWorker)
_later_failed: "msgspec.msgpack.Decoder[_LaterFailed]" = msgspec.msgpack.Decoder(_LaterFailed)


def in_common(version: int, oldest: int, own: tuple[int, int] = (OLDEST, VERSION)) -> bool:
    """Whether a peer that greets with these understands a version that this side, from `own`'s first to its second,
    understands too."""
    return (oldest or version) <= own[1] and version >= own[0]


def encode(message: msgspec.Struct) -> bytes:
    """One frame as bytes."""
    return _encoder.encode(message)


def decode_to_worker(data: bytes) -> ToWorker:
    """A gateway's frame. Raises UnknownKind for a later version's, and BadFrame for anything else, before any of it is
    acted on."""
    frame = decode_with(_to_worker, data)
    if isinstance(frame, Generate | Prefill | Decode):
        _check(frame.sequence)
    return frame


def decode_from_worker(data: bytes) -> FromWorker:
    """A worker's frame; a failure whose code only a later version knows is "internal". Raises UnknownKind for a kind
    that only a later version knows, and BadFrame for anything else."""
    try:
        return decode_with(_from_worker, data)
    except UnknownKind:
        raise
    except BadFrame as error:
        try:
            later = decode_with(_later_failed, data)
        except BadFrame:
            raise error from None
        return Failed(later.id, later.attempt, "internal", f"{later.message} ({later.code})", later.part, later.retry)


def _check(sequence: Sequence) -> None:
    count, rest = divmod(len(sequence.token_ids), 4)
    if rest or count < sequence.prompt_len or sequence.prompt_len < 1:
        raise BadFrame(f"{len(sequence.token_ids)} bytes of token ids do not hold a prompt of {sequence.prompt_len}")
    if not sequence.choices or (len(sequence.choices) > 1 and count > sequence.prompt_len):
        raise BadFrame("only a sequence with no output may stand for several choices, and each for at least one")
    if sequence.params.max_tokens < 1:
        raise BadFrame(f"max_tokens is {sequence.params.max_tokens}; at least 1 is needed")
