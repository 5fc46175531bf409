"""What a scheduler may do, and the refusal of what it may not."""

from dataclasses import dataclass
from math import inf

from legato_engine.errors import EngineError
from legato_engine.scheduler.request import Request
from legato_protocol.stream import FailureCode, Finish, Role


class RequestRejected(EngineError):
    """A request or incoming transfer that is not taken. `code` is that of `stream.Failed`."""

    def __init__(self, code: FailureCode, message: str) -> None:
        super().__init__(message)
        self.code: FailureCode = code

    @property
    def retry(self) -> bool:
        """Whether another worker, or this one later, may take it."""
        return self.code != "invalid"


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Fixed for the life of a scheduler. `role` sets the order in which waiting requests start."""

    role: Role
    block_size: int
    max_length: int  # tokens of one sequence, prompt and output
    chunk_tokens: int = 512  # prompt tokens in one step
    tpot: float = inf  # seconds that a step with decodes may take: prompts beside them get what is left of it
    max_running: int = 64  # sequences in one step; a request of several choices counts as several
    max_waiting: int = 256
    max_parked: int = 32  # prefills for a hand-off that have, or will soon have, their KV computed but no grant
    growth_tokens: int = 32  # output still expected of a running sequence that nothing else is known of
    reserve_maximum: bool = False  # admission leaves room for all of max_tokens, not for what is expected
    aging: float = 5.0  # seconds of waiting that are worth one step of priority

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def check(self, request: Request, num_blocks: int) -> None:
        """Raise RequestRejected for a request that could never be served here, however long it waited."""
        known = len(request.tokens)
        if not 0 < request.prompt_len <= known:
            raise RequestRejected("invalid", f"a prompt of {request.prompt_len} tokens in {known}")
        if known >= self.max_length:
            raise RequestRejected("invalid", f"{known} tokens leave no room for output: the limit is {self.max_length}")
        if request.outputs >= request.params.max_tokens:
            raise RequestRejected("invalid", f"all {request.params.max_tokens} tokens asked for exist already")
        if len(request.choices) > self.max_running:
            raise RequestRejected("invalid", f"{len(request.choices)} choices; at most {self.max_running} run at once")
        longest = self.longest(request) if request.room is None else self.reserved(request)
        if self.blocks_for(longest) > num_blocks:
            raise RequestRejected(
                "invalid", f"{longest} tokens need {self.blocks_for(longest)} blocks; there are {num_blocks}"
            )

    def longest(self, request: Request) -> int:
        """Tokens that `request` may end with."""
        return min(request.prompt_len + request.params.max_tokens, self.max_length)

    def reserved(self, request: Request) -> int:
        """Tokens that a hand-off reserves blocks for: the known ones and a block of output, as far as there can be."""
        return min(len(request.tokens) + self.block_size, self.longest(request))

    def finish(self, request: Request) -> Finish | None:
        """Why `request` is over after the last of its tokens, if it is."""
        if request.tokens[-1] in request.params.stop_token_ids:
            return "stop"
        known = len(request.tokens)
        if known >= self.max_length or known - request.prompt_len >= request.params.max_tokens:
            return "length"
        return None
