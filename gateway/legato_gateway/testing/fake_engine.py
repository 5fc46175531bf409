"""The computation of a scripted worker: sequences that move through stages, and tokens from a pure function.

No sockets and no model in here. A token depends on (seed, choice, output index) only, so a test knows the client's
text, whatever happens on the way. A sequence with other output than that is refused, as proof that the gateway
continues from exactly the tokens that it was sent.
"""

import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from legato_protocol.wire.packed_logprobs import PackedLogprobs
from legato_protocol.wire.packed_tokens import unpack_tokens
from legato_protocol.wire.stream import (
    Cancel,
    Decode,
    Failed,
    FailureCode,
    Finish,
    Generate,
    Handoff,
    HandoffReport,
    Part,
    Peer,
    Prefill,
    PromptLogprobs,
    Sequence,
    Split,
    Started,
    TokenItem,
    TokenLogprobs,
    TopLogprob,
)

Output = Started | PromptLogprobs | TokenItem | HandoffReport | Failed
Stage = Literal["queued", "prefilling", "pushing", "receiving", "decoding"]
TokenAt = Callable[[int, int, int], int]


def token_at(seed: int, choice: int, index: int, vocabulary: int = 256) -> int:
    """Returns the token that every fake worker makes for this seed and choice at this output index."""
    return zlib.crc32(b"%d/%d/%d" % (seed, choice, index)) % vocabulary


@dataclass(slots=True, eq=False)
class Job:
    """A sequence on this worker. `made` counts the output tokens of each unfinished choice."""

    frame: Generate | Prefill | Decode
    stage: Stage
    made: dict[int, int]
    paused: bool = False
    move: Handoff | None = None

    @property
    def sequence(self) -> Sequence:
        return self.frame.sequence


@dataclass(frozen=True, slots=True)
class ScriptedRefusal:
    """The contents of a scripted failure."""

    code: FailureCode
    retry: bool
    part: Part = "decode"


@dataclass(slots=True)
class Fabric:
    """The link between fake workers of one process: engines by (worker, epoch)."""

    engines: "dict[tuple[str, str], FakeEngine]" = field(default_factory=dict)

    def peer(self, peer: Peer) -> "FakeEngine | None":
        """Returns the engine of that process, or None if it has ended."""
        return self.engines.get((peer.worker, peer.epoch))


class FakeEngine:
    """Jobs of one epoch of one worker. `step` moves each by one stage or one token, and yields frames to send."""

    def __init__(self, worker: str, epoch: str, fabric: Fabric, tokens: TokenAt = token_at, lengthy: int = 1) -> None:
        self.worker = worker
        self.epoch = epoch
        self.jobs: dict[tuple[object, str], Job] = {}  # by (gateway, id)
        self.prompts: deque[bytes] = deque()  # prompts with newly cached KV, for events
        self.refusals: deque[ScriptedRefusal] = deque()
        self.draining = False
        self.received: list[HandoffReport] = []
        self.computed: list[str] = []  # ids whose prompt was computed here
        self._fabric = fabric
        self._tokens = tokens
        self._lengthy = lengthy  # tokens per step and choice
        self._aborted: set[int] = set()  # rooms whose sender must stop
        self._arrived: dict[int, tuple[FakeEngine, Job]] = {}
        self._held: dict[Stage, int] = {}
        fabric.engines[(worker, epoch)] = self

    def stop(self) -> None:
        """Ends this process."""
        self._fabric.engines.pop((self.worker, self.epoch), None)
        self.jobs.clear()

    # ── script ──────────────────────────────────────────────────────────────────────────────────────────────────

    def hold(self, stage: Stage, after: int = 0) -> None:
        """Keeps jobs that reach `stage` there (when decoding: once `after` tokens of each choice are made)."""
        self._held[stage] = after

    def release(self) -> None:
        """Lets all held jobs continue."""
        self._held.clear()

    def at(self, stage: Stage) -> list[Job]:
        """Returns the jobs at that stage (when decoding and held: the ones that made all they may)."""
        jobs = [job for job in self.jobs.values() if job.stage == stage]
        return [job for job in jobs if stage != "decoding" or self._halted(job)] if stage in self._held else jobs

    @property
    def busy(self) -> bool:
        return any(not self._halted(job) and not job.paused for job in self.jobs.values())

    # ── frames ──────────────────────────────────────────────────────────────────────────────────────────────────

    def accept(self, gateway: object, frame: Generate | Prefill | Decode) -> Failed | None:
        """Takes a sequence, or returns the reason against it."""
        refusal = self._refusal(frame.sequence)
        if refusal is not None:
            if isinstance(frame, Decode):
                self._aborted.add(frame.room)
            return failure(frame, refusal, "scripted" if refusal.code != "invalid" else "this output was not made here")
        sequence = frame.sequence
        known = len(sequence.token_ids) // 4 - sequence.prompt_len
        stage: Stage = "receiving" if isinstance(frame, Decode) else "queued"
        self.jobs[(gateway, frame.id)] = Job(frame, stage, dict.fromkeys(sequence.choices, known))
        return None

    def _refusal(self, sequence: Sequence) -> ScriptedRefusal | None:
        if self.refusals:
            return self.refusals.popleft()
        if self.draining:
            return ScriptedRefusal("draining", retry=True)
        output = unpack_tokens(sequence.token_ids)[sequence.prompt_len :]
        seed, choice = sequence.params.seed, sequence.choices[0]
        if output != [self._tokens(seed, choice, index) for index in range(len(output))]:
            return ScriptedRefusal("invalid", retry=False)
        return None

    def cancel(self, gateway: object, frame: Cancel) -> None:
        job = self.jobs.get((gateway, frame.id))
        if job is None or job.frame.attempt > frame.attempt:
            return
        made = {c: count for c, count in job.made.items() if frame.choices and c not in frame.choices}
        if made and job.stage == "decoding":
            job.made = made
        elif not made:
            del self.jobs[(gateway, frame.id)]
            if isinstance(job.frame, Decode):
                self._aborted.add(job.frame.room)

    def split(self, gateway: object, frame: Split) -> None:
        """Makes each running choice a job of its own."""
        job = self.jobs.get((gateway, frame.id))
        if job is None or job.frame.attempt != frame.attempt or job.stage != "decoding":
            return
        for choice, name in frame.names.items():
            if choice in job.made:
                sequence = replace(job.sequence, choices=(choice,))
                made = {choice: job.made.pop(choice)}
                own = replace(job.frame, id=name, sequence=sequence)
                self.jobs[(gateway, name)] = Job(own, job.stage, made, job.paused)
        if not job.made:
            del self.jobs[(gateway, frame.id)]

    def pause(self, gateway: object, id: str, on: bool) -> None:
        job = self.jobs.get((gateway, id))
        if job is not None:
            job.paused = on

    def move(self, gateway: object, frame: Handoff) -> Failed | None:
        job = self.jobs.get((gateway, frame.id))
        if job is None or job.stage != "decoding":
            return Failed(frame.id, frame.attempt, "transfer", "nothing runs under this id", "transfer", True)
        job.move = frame
        return None

    # ── steps ───────────────────────────────────────────────────────────────────────────────────────────────────

    def step(self) -> Iterator[tuple[object, Output]]:
        """Moves every job on by one. Yields frames with the gateway that gets them."""
        for (gateway, id), job in list(self.jobs.items()):
            if (gateway, id) in self.jobs and not job.paused:
                for output in self._advance(gateway, id, job):
                    yield gateway, output

    def _halted(self, job: Job) -> bool:
        after = self._held.get(job.stage)
        return after is not None and (job.stage != "decoding" or all(made >= after for made in job.made.values()))

    def _advance(self, gateway: object, id: str, job: Job) -> Iterator[Output]:
        if job.move is not None:
            yield from self._push(job, job.move)
        elif self._halted(job):
            return
        elif job.stage == "queued":
            job.stage = "prefilling"
            yield Started(id, job.frame.attempt)
        elif job.stage == "prefilling":
            yield from self._scored(id, job)
            self._prefilled(job)
        elif job.stage == "pushing":
            assert isinstance(job.frame, Prefill)
            yield from self._push(job, job.frame)
        elif job.stage == "receiving":
            yield from self._receive(gateway, id, job)
        else:
            yield from self._decode(gateway, id, job)

    def _scored(self, id: str, job: Job) -> Iterator[PromptLogprobs]:
        """Yields requested logprobs of the prompt, in two parts."""
        sequence, alternatives = job.sequence, job.sequence.params.prompt_logprobs
        tokens = unpack_tokens(sequence.token_ids)[: sequence.prompt_len]
        if alternatives is None:
            return
        for start, end in ((1, 1 + len(tokens) // 2), (1 + len(tokens) // 2, len(tokens))):
            if start < end:
                yield PromptLogprobs(id, job.frame.attempt, start, prompt_logprobs_of(tokens[start:end], alternatives))

    def _prefilled(self, job: Job) -> None:
        self.computed.append(job.frame.id)
        self.prompts.append(job.sequence.token_ids)
        job.stage = "pushing" if isinstance(job.frame, Prefill) else "decoding"

    def _push(self, job: Job, frame: Prefill | Handoff) -> Iterator[Failed]:
        peer = self._fabric.peer(frame.to)
        if peer is not None and frame.room not in peer._aborted:
            peer._arrived.setdefault(frame.room, (self, job))
            return
        self._unpushed(job)
        if peer is None:
            yield Failed(frame.id, frame.attempt, "peer_lost", f"{frame.to.worker} is gone", "transfer", True)
        else:
            yield Failed(frame.id, frame.attempt, "transfer", f"{frame.to.worker} aborted it", "transfer", True)

    def _unpushed(self, job: Job) -> None:
        if job.move is not None:
            job.move = None  # it continues here under the old attempt
        else:
            self._drop(job)

    def _drop(self, job: Job) -> None:
        for key, known in list(self.jobs.items()):
            if known is job:
                del self.jobs[key]

    def _receive(self, gateway: object, id: str, job: Job) -> Iterator[HandoffReport | Failed]:
        frame = job.frame
        assert isinstance(frame, Decode)
        if self._fabric.peer(frame.source) is None:
            del self.jobs[(gateway, id)]
            yield Failed(id, frame.attempt, "peer_lost", f"{frame.source.worker} is gone", "transfer", True)
        elif frame.room in self._arrived:
            sender, sent = self._arrived.pop(frame.room)
            sender._drop(sent)
            self.prompts.append(frame.sequence.token_ids)
            job.stage = "decoding"
            blocks = len(frame.sequence.token_ids) // 64 + 1
            report = HandoffReport(
                id, frame.attempt, frame.room, sender.worker, blocks, 0, blocks * 1024, 0.001, 0.0005, "memory"
            )
            self.received.append(report)
            yield report

    def _decode(self, gateway: object, id: str, job: Job) -> Iterator[TokenItem]:
        params = job.sequence.params
        for choice, made in list(job.made.items()):
            tokens: list[int] = []
            finish: Finish | None = None
            while finish is None and len(tokens) < self._lengthy:
                tokens.append(self._tokens(params.seed, choice, made + len(tokens)))
                if tokens[-1] in params.stop_token_ids and made + len(tokens) > params.min_tokens:
                    finish = "stop"
                elif made + len(tokens) == params.max_tokens:
                    finish = "length"
            job.made[choice] = made + len(tokens)
            if finish:
                del job.made[choice]
            logprobs = (
                tuple(logprobs_of(token, params.logprobs) for token in tokens) if params.logprobs is not None else ()
            )
            yield TokenItem(id, job.frame.attempt, choice, made, tuple(tokens), logprobs, finish)
        if not job.made:
            self.jobs.pop((gateway, id), None)


def logprobs_of(token: int, alternatives: int) -> TokenLogprobs:
    """Returns the logprobs that every fake worker gives that token."""
    top = tuple(TopLogprob(token + rank, -0.5 - rank) for rank in range(alternatives))
    return TokenLogprobs(-0.5, top)


def prompt_logprobs_of(tokens: list[int], alternatives: int) -> PackedLogprobs:
    """Returns the logprobs that every fake worker gives these tokens of a prompt."""
    logprobs = [-float(token) - rank for token in tokens for rank in range(1 + alternatives)]
    ids = [token + rank for token in tokens for rank in range(alternatives)]
    packed = (array(kind, values).tobytes() for kind, values in (("f", logprobs), ("i", ids), ("i", tokens)))
    return PackedLogprobs(alternatives, *packed)


def failure(frame: Generate | Prefill | Decode, refusal: ScriptedRefusal, message: str) -> Failed:
    """Returns the frame that refuses `frame`."""
    return Failed(frame.id, frame.attempt, refusal.code, message, refusal.part, refusal.retry)
