"""Limits of a scheduler: rejects requests that exceed them, and decides when a request ends and its finish reason."""

from dataclasses import dataclass
from math import inf

from legato_engine.errors import EngineError
from legato_engine.kvcache.sequence_sizes import SequenceSizes
from legato_engine.scheduler.requests.request import Request
from legato_protocol.wire.stream import FailureCode, Finish, Role


class RequestRejected(EngineError):
    """A rejected request or incoming transfer. `code` is sent in `stream.Failed`."""

    def __init__(self, code: FailureCode, message: str) -> None:
        super().__init__(message)
        self.code: FailureCode = code

    @property
    def retry(self) -> bool:
        """True if another worker, or this one later, may accept it."""
        return self.code != "invalid"


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Fixed for the life of a scheduler. `role` sets the order in which waiting requests start."""

    role: Role
    block_size: int
    max_length: int  # tokens of one sequence, prompt and output
    chunk_tokens: int = 512  # prompt tokens in one step
    lone_chunk: int = 0  # the same for the only sequence here, if that may be more
    tpot: float = inf  # objective for a token, in seconds: limits the prompt tokens of steps with decodes
    max_running: int = 64  # sequences in one step; a request of several choices counts as several
    max_waiting: int = 256
    max_parked: int = 32  # ungranted prefills for hand-offs whose KV is computed or being computed
    growth_tokens: int = 32  # expected further output of a running sequence if nothing else is known
    reserve_maximum: bool = False  # admission reserves max_tokens instead of the expected output
    aging: float = 5.0  # seconds of waiting that count as one step of priority
    windows: tuple[int, ...] = ()  # of the groups of layers after the first
    drafts: int = 0  # tokens that may be drafted of a sequence in one step

    @property
    def sizes(self) -> SequenceSizes:
        """Numbers of blocks of all groups that sequences take."""
        return SequenceSizes(self.block_size, self.windows, self.chunk_tokens)

    @property
    def most_sampled(self) -> int:
        """Tokens that a step samples at most, including those after drafts."""
        return max(self.max_running, 1 + self.drafts)

    def blocks_for(self, tokens: int) -> int:
        """Blocks of the first group for this number of tokens."""
        return -(-tokens // self.block_size)

    def check(self, request: Request, num_blocks: int) -> None:
        """Raises RequestRejected for a request that could never be served here."""
        known = len(request.tokens)
        if not 0 < request.prompt_len <= known:
            raise RequestRejected("invalid", f"a prompt of {request.prompt_len} tokens in {known}")
        if known >= self.max_length:
            raise RequestRejected("invalid", f"{known} tokens leave no room for output: the limit is {self.max_length}")
        if request.outputs >= request.params.max_tokens:
            raise RequestRejected("invalid", f"all {request.params.max_tokens} requested tokens exist already")
        if len(request.choices) > self.max_running:
            raise RequestRejected("invalid", f"{len(request.choices)} choices; at most {self.max_running} can run")
        longest = self.longest(request) if request.room is None else self.reserved_tokens(request)
        if (needed := self.sizes.most(longest)) > num_blocks:
            raise RequestRejected("invalid", f"{longest} tokens need {needed} blocks; there are {num_blocks}")

    def longest(self, request: Request) -> int:
        """Most tokens that `request` can have at its end."""
        return min(request.prompt_len + request.params.max_tokens, self.max_length)

    def reserved_tokens(self, request: Request) -> int:
        """Tokens for which a hand-off reserves blocks: the known ones and up to a block of output."""
        return min(len(request.tokens) + self.block_size, self.longest(request))

    def finish(self, request: Request) -> Finish | None:
        """The finish reason if `request` ends with its last token, or None."""
        if request.tokens[-1] in request.params.stop_token_ids:
            return "stop"
        known = len(request.tokens)
        if known >= self.max_length or known - request.prompt_len >= request.params.max_tokens:
            return "length"
        return None
