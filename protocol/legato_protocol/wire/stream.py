"""Frames between gateway and worker on `/stream`, and their encoding.

The first frame in each direction is a greeting (`Greeting` from the gateway, `Hello` from the worker). Both carry the
versions that their sender understands; a side that has no version in common closes the connection. Within a version,
fields are only appended: an older reader skips them, and skips frames of unknown kinds. So gateways and workers of two
releases work together during an upgrade (`CONTRIBUTING.md`, Versions of the protocol). A new value of a `Literal` needs
a new version: an older gateway rejects the frame and closes the connection. Only unknown failure codes are read: as
`internal`.

After the greetings, many requests share the connection. Every frame about a request names it by `id` and `attempt`;
only the gateway increments `attempt`. `id` is the gateway's own: it names all choices of a request
(`Sequence.choices`) or, after a failure or a `Split`, one of them.

All durations are seconds from now: clocks of two machines are never compared.
"""

from typing import Literal

import msgspec

from legato_protocol.sampling.parameters import SamplingParams
from legato_protocol.wire.load import Load
from legato_protocol.wire.messages import (
    BadFrame,
    Count,
    Measure,
    Message,
    Size,
    Token,
    UnknownKind,
    Value,
    decode_with,
)
from legato_protocol.wire.packed_logprobs import PackedLogprobs

VERSION = 2  # incremented by changes that an older reader must not skip
OLDEST = 2  # oldest version understood; at least the last release's version

Role = Literal["prefill", "decode", "unified"]
Finish = Literal["stop", "length"]
Part = Literal["gateway", "prefill", "decode", "transfer"]
FailureCode = Literal[
    "invalid",  # the worker cannot serve such a request; permanent
    "overloaded",  # no room now; temporary
    "deadline",  # its deadline passed
    "transfer",  # KV could not be handed over
    "peer_lost",  # the other worker of the pair died or was replaced
    "draining",  # this worker accepts nothing new
    "stale",  # meant for another epoch of this worker
    "internal",  # a fault of Legato
    "faulted",  # no token could be sampled: the sequence's logits were not finite
]


class Sequence(Value, frozen=True):
    """A sequence: its prompt, then every token already sent to the client.

    `token_ids` are little-endian int32 (`pack_tokens`). If they are more than `prompt_len`, the worker continues at
    output index `len(token_ids)/4 - prompt_len`; penalties, limits and random numbers continue by absolute position.
    Only a sequence without output may have several choices.
    """

    token_ids: bytes
    prompt_len: int
    params: SamplingParams
    deadline: float
    choices: tuple[int, ...] = (0,)
    priority: int = 0  # higher goes first
    tenant: str = ""
    cache_salt: str = ""
    adapter: str = ""  # the digest of one of `Hello.adapters`; empty: no adapter
    trace: str = ""  # W3C traceparent of the attempt; empty: not traced


class Peer(Value, frozen=True):
    """A worker as another worker reaches it: `Hello.address` and `Hello.handoff_tls`."""

    worker: str
    epoch: str
    address: bytes
    tls: bool = False


class KVSource(Value, frozen=True):
    """Another worker that has the sequence's first `blocks` blocks cached.

    The worker fetches the ones that it lacks under `room`, and computes the rest after at most `seconds`, whatever has
    arrived by then.
    """

    peer: Peer
    room: int
    blocks: Size
    seconds: Measure


class Greeting(Message, tag="greet", frozen=True):
    """The first frame of a gateway on `/stream` and on `/events`."""

    gateway: str
    version: int = VERSION
    oldest: int = 0  # oldest version understood; 0: only `version`


class Generate(Message, tag="gen", frozen=True):
    """Asks the worker to prefill (or recompute) and decode this sequence."""

    id: str
    attempt: int
    sequence: Sequence
    fetch: KVSource | None = None


class Prefill(Message, tag="pre", frozen=True):
    """Asks the worker to compute this sequence's KV and first token, and to hand it off to `to` under `room`."""

    id: str
    attempt: int
    room: int
    sequence: Sequence
    to: Peer
    fetch: KVSource | None = None


class Decode(Message, tag="dec", frozen=True):
    """Asks the worker to receive this sequence from `source` under `room` and to decode it.

    Tokens are sent from the first one that `sequence.token_ids` does not hold, even if `source` has sampled (and
    perhaps sent) more: the gateway drops duplicates.
    """

    id: str
    attempt: int
    room: int
    sequence: Sequence
    source: Peer


class Handoff(Message, tag="hand", frozen=True):
    """Asks the worker to move this running sequence to `to` under `room`. `attempt` is the new one, as in `to`'s
    `Decode`.

    Until the receiver commits, the sender keeps the sequence; if the move fails, it continues under the old attempt.
    """

    id: str
    attempt: int
    room: int
    to: Peer


class Cancel(Message, tag="cancel", frozen=True):
    """Asks the worker to stop all work of this id, up to this attempt, and to free its blocks. Unknown ids are ignored.

    With `choices`, only these are stopped. Before the first token all choices of an id are one sequence, which is not
    stopped for some of them.
    """

    id: str
    attempt: int
    choices: tuple[int, ...] = ()


class Split(Message, tag="split", frozen=True):
    """Gives the running sequence of each of these choices an id of its own; the attempt stays.

    Each can then be handed off and ended separately. Frames in flight still name the old id. Unknown ids and choices
    are ignored, and so are choices without a token: these are still one sequence under the old id.
    """

    id: str
    attempt: int
    names: dict[int, str]


class Pause(Message, tag="pause", frozen=True):
    """Pauses generation (or, with `on=False`, resumes it), because the client reads too slowly."""

    id: str
    attempt: int
    on: bool


ToWorker = Greeting | Generate | Prefill | Decode | Handoff | Cancel | Split | Pause


class Hello(Message, tag="hello", frozen=True):
    """The worker's identity. Sent first, again after its core restarted (a new epoch: its KV and sequences are lost),
    and when its adapters change (same epoch)."""

    worker: str
    epoch: str
    role: Role
    kv_revision: str  # workers of equal KV revision may exchange KV and continue each other's sequences
    weights: str  # fingerprint of the weights
    layout: str  # KV layout, readable
    block_size: Size
    num_blocks: Size
    max_length: Size
    address: bytes  # of its link; empty without a link
    transport: str  # of hand-offs, e.g. "ucx:tcp"
    pod_revision: str = ""
    version: int = VERSION
    model: str = ""  # `model_digest.digest` of the loaded model: token ids of another model mean other words
    oldest: int = 0  # oldest version understood; 0: only `version`
    grammars: tuple[str, ...] = ()  # supported kinds of grammars
    params: tuple[str, ...] = ()  # supported fields of `LATER_PARAMS`, or of a later version
    adapters: dict[str, str] = {}  # digest of each available adapter, by name
    handoff_tls: bool = False  # true if its link accepts TLS; peers that have TLS too use it
    former_adapters: tuple[str, ...] = ()  # digests of replaced adapters, kept for sequences that began with them
    windows: tuple[
        Size, ...
    ] = ()  # of the groups of layers that keep the last positions only, each in blocks of its own
    tiers: tuple[Count, ...] = ()  # of KV that it reports in addition to the arena, see `kv_events`
    ranks: Size = 1  # processes that each layer is sharded over


class TopLogprob(Value, frozen=True):
    token: Token
    logprob: float


class TokenLogprobs(Value, frozen=True):
    """The logprob of the sampled token, and its likeliest alternatives, best first."""

    logprob: float
    top: tuple[TopLogprob, ...] = ()


class TokenItem(Value, frozen=True, gc=False):
    """New tokens of one choice. `index` is the output position of the first one (0 directly follows the prompt)."""

    id: str
    attempt: Count
    choice: Count
    index: Count
    token_ids: tuple[Token, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish: Finish | None = None
    cached_tokens: Count = 0  # prompt tokens found in the prefix cache of the worker that prefilled
    preemptions: Count = 0  # so far, in this attempt
    reserved_blocks: Count = 0  # KV blocks reserved at the start; the first of several choices has the sum
    peak_blocks: Count = (
        0  # largest number of the choice's KV blocks so far, without blocks shared with the first choice
    )


class Tokens(Message, tag="tok", frozen=True):
    """All tokens of one step for this gateway."""

    items: tuple[TokenItem, ...]


class PromptLogprobs(Message, tag="scored", frozen=True):
    """Logprobs of a prompt's tokens from position `start` on, sent chunk by chunk by the worker that computes the
    prompt.

    The prompt's first token has no logprob. A worker sends them before its first output token; a prefill worker's may
    arrive after output tokens of the decode worker. After a preemption, some are sent again.
    """

    id: str
    attempt: Count
    start: Size
    logprobs: PackedLogprobs


class Started(Message, tag="began", frozen=True):
    """The next step computes this attempt for the first time; if the step kills the worker, the attempt is a
    suspect."""

    id: str
    attempt: Count


class HandoffReport(Message, tag="moved", frozen=True):
    """Reports that the receiver of a hand-off committed it (once per room)."""

    id: str
    attempt: Count
    room: int
    source: str
    blocks: Count  # transferred
    cached_blocks: Count  # that the receiver had already
    bytes: Count
    seconds: Measure  # from grant to commit
    boundary: Measure  # seconds from the sequence's last step at the sender to its first emission here
    transport: str


class Failed(Message, tag="fail", frozen=True):
    """The attempt failed in `part`. `retry` is true if another worker may succeed."""

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
    """The core of this epoch died, and its KV and sequences are lost. A `Hello` with a new epoch follows when it is
    back."""

    epoch: str
    reason: str
    silent: bool = False  # it may have lived: the server killed it after a silence, as of a starved process


FromWorker = Hello | Started | PromptLogprobs | Tokens | Load | HandoffReport | Failed | Lost

_encoder = msgspec.msgpack.Encoder()
_to_worker: "msgspec.msgpack.Decoder[ToWorker]" = msgspec.msgpack.Decoder(ToWorker)
_from_worker: "msgspec.msgpack.Decoder[FromWorker]" = msgspec.msgpack.Decoder(FromWorker)
_later_failed: "msgspec.msgpack.Decoder[_LaterFailed]" = msgspec.msgpack.Decoder(_LaterFailed)


def in_common(version: int, oldest: int, own: tuple[int, int] = (OLDEST, VERSION)) -> bool:
    """True if a peer that understands `oldest` to `version` has a version in common with `own`, also oldest to
    newest."""
    return (oldest or version) <= own[1] and version >= own[0]


def encode(message: msgspec.Struct) -> bytes:
    """Encodes one frame."""
    return _encoder.encode(message)


def decode_to_worker(data: bytes) -> ToWorker:
    """Decodes and checks a gateway's frame. Raises UnknownKind for one of a later version, BadFrame for anything
    else."""
    frame = decode_with(_to_worker, data)
    if isinstance(frame, Generate | Prefill | Decode):
        _check(frame.sequence)
    return frame


def decode_from_worker(data: bytes) -> FromWorker:
    """Decodes a worker's frame; a failure with an unknown code becomes "internal". Raises UnknownKind for a frame of a
    later version, and BadFrame for anything else."""
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
