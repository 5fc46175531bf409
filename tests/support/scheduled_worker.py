"""A worker without a model: an arena whose slots hold what was written to them, and clients that know every token.

The "KV" of a position is a hash over the KV of all positions before it, as read through the block table, and the token.
In a group of layers with a window, it is a hash over the last ones. The next token is a hash over all KV that it sees.
So a block that is stale, foreign, shared wrongly or not copied gives other tokens than the pure reference does.
"""

from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from math import inf
from typing import Any

from counted_tokens import check_counts

from legato_engine.kvcache.block_pool import BlockPool, TierSizes
from legato_engine.kvcache.disk_tier import Order, Outcome, ReadBlock, RemoveBlock
from legato_engine.kvcache.events import EventLog
from legato_engine.kvcache.moves import Content, Save
from legato_engine.scheduler.batch import Batch, DraftRow, Draw, Row, Sampled, Scored, StepOutput
from legato_engine.scheduler.handoff import transfers
from legato_engine.scheduler.handoff.transfers import IncomingTransfer, OutgoingTransfer
from legato_engine.scheduler.requests.limits import SchedulerLimits
from legato_engine.scheduler.requests.request import Request
from legato_engine.scheduler.results import Emission, EndedSequences, ScoredTokens, SequenceKV, StepResult
from legato_engine.scheduler.scheduler import Scheduler
from legato_engine.scheduler.speculation.drafter import Draft, Drafter
from legato_engine.scheduler.speculation.model_drafter import DraftLimits, ModelDrafter
from legato_protocol.sampling.parameters import SamplingParams
from legato_protocol.wire.block_hash import split
from legato_protocol.wire.kv_events import KVEvent, Stored
from legato_protocol.wire.kv_windows import window_blocks
from legato_protocol.wire.packed_logprobs import PackedLogprobs
from legato_protocol.wire.stream import Peer, TokenLogprobs

VOCABULARY = 1000
GARBAGE = -1
PEER = Peer("peer", "epoch", b"")
ids = count()


def prompt(length: int, start: int = 0) -> tuple[int, ...]:
    return tuple(range(start, start + length))


def kv(before: Sequence[int], token: int) -> int:
    return hash((*before, token)) & 0xFFFFFFFFFFFF


def all_kv(tokens: Sequence[int]) -> list[int]:
    """The KV of a sequence from its begin."""
    values: list[int] = []
    for token in tokens:
        values.append(kv(values, token))
    return values


def window_kv(before: Sequence[int], window: int, token: int) -> int:
    """The KV of a position in a group with a window, from the values before it."""
    return hash((window, *before[max(0, len(before) - window + 1) :], token)) & 0xFFFFFFFFFFFF


def next_token(values: Sequence[int], seed: int, choice: int, seen: Iterable[int] = ()) -> int:
    """`seen` are the last values of groups with a window."""
    return hash((seed, choice, *values, *seen)) % VOCABULARY


def logprob(values: Sequence[int], token: int) -> float:
    """The logprob of a token of a prompt after all before it, whose KV are `values`."""
    return -float(hash((token, *values)) % 4096)


def outgoing_of(request: Request) -> OutgoingTransfer:
    transfer = transfers.outgoing_of(request)
    assert transfer is not None
    return transfer


def ask(length: int, start: int = 0, **fields: Any) -> "Client":
    """A client whose prompt has this many tokens, counted from `start`."""
    return Client(prompt(length, start), **fields)


@dataclass
class Client:
    """The sender of a request: checks each token that comes back."""

    prompt: tuple[int, ...]
    max_tokens: int = 4
    choices: tuple[int, ...] = (0,)
    seed: int = 7
    stop: tuple[int, ...] = ()
    scores: bool = False  # it asks for logprobs of its prompt
    reads: bool = False  # its draws read the tokens before them
    id: str = field(default_factory=lambda: f"request-{next(ids)}")
    got: dict[int, list[int]] = field(default_factory=dict)
    scored: list[float] = field(default_factory=list)
    finished: dict[int, str] = field(default_factory=dict)
    over: bool = False  # it expects nothing more
    dropped: set[int] = field(default_factory=set)  # choices of which it expects nothing more
    windows: tuple[int, ...] = ()  # of the workers' groups

    def __post_init__(self) -> None:
        self.got = {choice: [] for choice in self.choices}
        self.expected = {choice: self._reference(choice) for choice in self.choices}

    @property
    def params(self) -> SamplingParams:
        scores = 0 if self.scores else None
        penalty = 1.5 if self.reads else 1.0
        return SamplingParams(
            max_tokens=self.max_tokens, seed=self.seed, stop_token_ids=self.stop, prompt_logprobs=scores,
            repetition_penalty=penalty,
        )  # fmt: skip

    @property
    def complete(self) -> bool:
        return all(self.got[c] == self.expected[c] and c in self.finished for c in set(self.choices) - self.dropped)

    def request(self, now: float = 0.0, **overrides: object) -> Request:
        values = {"id": self.id, "attempt": 1, "tokens": list(self.prompt), "prompt_len": len(self.prompt)}
        values |= {"params": self.params, "deadline": now + 1e6, "choices": self.choices}
        return Request(**values | overrides)

    def take_scores(self, scored: ScoredTokens) -> None:
        assert scored.start == len(self.scored) + 1, "logprobs come in order, and each once"
        self.scored += [token.logprob for token in scored.logprobs]

    def take(self, emission: Emission) -> None:
        assert not self.scores or self.scored == self.expected_scores(), "logprobs of the prompt come before its answer"
        assert emission.choice not in self.dropped, "a token came after its choice was cancelled"
        got, expected = self.got[emission.choice], self.expected[emission.choice]
        assert emission.index <= len(got), "a token is missing"
        for index, sampled in enumerate(emission.sampled, emission.index):
            assert sampled.token == expected[index], f"token {index} of {self.id} is wrong"
            if index == len(got):
                got.append(sampled.token)
        if emission.finish:
            self.finished[emission.choice] = emission.finish
            assert (got, emission.finish) == (expected, "stop" if got[-1] in self.stop else "length")

    def expected_scores(self) -> list[float]:
        values = all_kv(self.prompt)
        return [logprob(values[:place], self.prompt[place]) for place in range(1, len(self.prompt))]

    def _reference(self, choice: int) -> list[int]:
        values, output, others = all_kv(self.prompt), list[int](), [(window, list[int]()) for window in self.windows]
        for window, of_group in others:
            for token in self.prompt:
                of_group.append(window_kv(of_group, window, token))
        while len(output) < self.max_tokens and not (output and output[-1] in self.stop):
            seen = [value for window, of_group in others for value in of_group[-window:]]
            output.append(next_token(values, self.seed, choice, seen))
            values.append(kv(values, output[-1]))
            for window, of_group in others:
                of_group.append(window_kv(of_group, window, output[-1]))
        return output


class Guesses:
    """Drafts that are right up to some place."""

    def __init__(self, clients: Mapping[str, Client]) -> None:
        self._clients = clients

    def propose(self, request: Request, most: int) -> Draft:
        known = request.outputs
        right = (known * 7 + request.choice) % 5  # tokens
        expected = self._clients[request.id].expected[request.choice][known : known + most]
        return Draft([token + (place >= right) for place, token in enumerate(expected)], [0.5] * len(expected))


class Arena:
    """Blocks of slots, and the fake runner over them."""

    def __init__(self, num_blocks: int, block_size: int, windows: tuple[int, ...] = (), host_slots: int = 0) -> None:
        self.block_size = block_size
        self.slots = [[GARBAGE] * block_size for _ in range(host_slots)]
        self.windows = windows
        self.blocks = [[GARBAGE] * block_size for _ in range(num_blocks)]
        self.drafted = [[GARBAGE] * block_size for _ in range(num_blocks)]  # the draft model's arena

    def draft(self, rows: Sequence[DraftRow]) -> StepOutput:
        """Drafts that are right up to some place, from KV that the draft model has computed itself."""
        return tuple([tuple(self._draft(row)) for row in rows])

    def _draft(self, row: DraftRow) -> Iterable[Sampled]:
        values, known, choice = all_kv(row.draw.tokens[: row.start]), len(row.draw.tokens), row.draw.choice
        assert [self._slot(row.blocks, at, self.drafted) for at in range(row.start)] == values, "a draft model's KV"
        assert list(row.draw.tokens[row.start : row.start + len(row.tokens)]) == list(row.tokens)
        right, tokens = (known * 7 + choice) % 5, list(row.tokens)
        for place in count():
            for token in tokens:
                self._write(row.blocks, len(values), kv(values, token), self.drafted)
                values.append(kv(values, token))
            if place == row.count:
                return
            tokens = [(next_token(values, row.draw.params.seed, choice) + (place >= right)) % VOCABULARY]
            yield Sampled(tokens[0], TokenLogprobs(-0.5, ()))

    def run(self, batch: Batch, before: StepOutput = ()) -> StepOutput:
        """`before` is what the step before sampled."""
        drawn = [one.token for row in before for one in (row.sampled if isinstance(row, Scored) else row)]
        for move in batch.moves:
            if isinstance(move, Save):
                self.slots[move.slot] = list(self.blocks[move.block])
            else:
                self.blocks[move.block] = list(self.slots[move.slot])
        if batch.drafting:
            return self.draft(batch.drafting)
        for source, target in batch.copies:
            self.blocks[target] = list(self.blocks[source])
        written = [
            (table[(row.start + i) // self.block_size], (row.start + i) % self.block_size)
            for row in batch.rows
            for table in (row.blocks, *row.windows)
            for i in range(len(row.tokens))
        ]
        assert len(written) == len(set(written)), "two rows write to one slot"
        return tuple(self._row(row, [drawn[-1 - t] if t < 0 else t for t in row.tokens]) for row in batch.rows)

    def read(self, blocks: Sequence[int], length: int) -> list[int]:
        return [self._slot(blocks, position) for position in range(length)]

    def _slot(self, table: Any, position: int, blocks: Any = None) -> int:
        return (blocks or self.blocks)[table[position // self.block_size]][position % self.block_size]

    def _write(self, table: Any, position: int, value: int, blocks: Any = None) -> None:
        (blocks or self.blocks)[table[position // self.block_size]][position % self.block_size] = value

    def _row(self, row: Row, tokens: Sequence[int]) -> tuple[Sampled, ...] | Scored:
        values, others = self.read(row.blocks, row.start), list[list[int]]()
        assert len(row.windows) == len(self.windows)
        for window, table in zip(self.windows, row.windows, strict=True):
            first = max(0, row.start - window + 1)
            others.append([GARBAGE] * first + [self._slot(table, at) for at in range(first, row.start)])
        logprobs, targets = array("f"), iter(row.targets.tokens if row.targets is not None else ())
        drawn, last = list[Sampled](), len(tokens) - 1 - row.drafts
        for place, token in enumerate(tokens):
            for window, table, of_group in zip(self.windows, row.windows, others, strict=True):
                of_group.append(window_kv(of_group, window, token))
                self._write(table, len(values), of_group[-1])
            self._write(row.blocks, len(values), kv(values, token))
            values.append(kv(values, token))
            logprobs.extend(logprob(values, target) for target in islice(targets, 1))
            seen = [each for window, of_group in zip(self.windows, others, strict=True) for each in of_group[-window:]]
            if place >= last and row.draws:
                draws = row.draws[place - last :][:1] if row.drafts else row.draws
                drawn += [self._draw(draw, values, seen, tokens[last : place + 1]) for draw in draws]
        sampled = tuple(drawn)
        assert len(sampled) == len(row.draws)
        if row.targets is None:
            return sampled
        assert not list(targets), "a target without logits"
        return Scored(PackedLogprobs(0, logprobs.tobytes(), b"", bytes(4 * len(logprobs))), sampled, 0.25)

    def _draw(self, draw: Draw, values: Sequence[int], seen: Sequence[int], last: Sequence[int]) -> Sampled:
        """`last` are the row's last known token and the drafts before the draw."""
        assert draw.position == len(values)
        check_counts(draw)
        reads = draw.params.repetition_penalty != 1
        if reads or len(draw.tokens) == len(values):
            assert list(draw.tokens[-len(last) :]) == list(last)
        return Sampled(next_token(values, draw.params.seed, draw.choice, seen))


class Worker:
    """A scheduler with its arena, and a gateway's view of its events."""

    def __init__(
        self,
        num_blocks: int = 32,
        block_size: int = 4,
        host_slots: int = 0,
        files: int = 0,
        draft_model: bool = False,
        **limits: object,
    ) -> None:
        defaults = {"role": "unified", "max_length": 64, "chunk_tokens": 16, "growth_tokens": 4}
        chosen = SchedulerLimits(block_size=block_size, **defaults | limits)
        self.pool = BlockPool(num_blocks, EventLog("epoch"), chosen.windows, block_size, TierSizes(host_slots, files))
        self.clients: dict[str, Client] = {}
        drafter: Drafter | None = Guesses(self.clients) if chosen.drafts else None
        if chosen.drafts and draft_model:
            drafter = ModelDrafter(self.pool, block_size, DraftLimits(VOCABULARY, chosen.max_length))
        self.scheduler = Scheduler(chosen, self.pool, "revision", drafter)
        self.incoming, self.outgoing = self.scheduler.incoming, self.scheduler.outgoing
        self.arena = Arena(num_blocks, block_size, chosen.windows, host_slots)
        self.now = 0.0
        self.before: StepOutput = ()  # of the step that was processed last
        self.batches: list[Batch] = []
        self.known: tuple[set[bytes], ...] = (set(), set(), set())  # hashes that a reader of the events knows, by tier
        self.numbers: tuple[list[int], ...] = ([], [], [])
        self.files: dict[Content, list[int]] = {}
        self.orders: deque[Order] = deque()  # of files, not carried out
        self.flight: Batch | None = None
        self.output: StepOutput | None = None
        self.next: Batch | None = None  # launched ahead
        self.next_output: StepOutput | None = None

    def add(self, client: Client, **overrides: object) -> Request:
        self.clients[client.id] = client
        request = client.request(self.now, **overrides)
        self.scheduler.add(request, self.now)
        return request

    def add_all(self, clients: Iterable[Client], **overrides: object) -> list[Request]:
        return [self.add(client, **overrides) for client in clients]

    def reserve(self, client: Client, **overrides: object) -> IncomingTransfer:
        """Reserves room for a sequence that comes from some peer."""
        self.clients[client.id] = client
        request = client.request(self.now, **{"room": 1, **overrides})
        return self.incoming.reserve(request, PEER, self.now)

    def granted(self, client: Client, **overrides: object) -> IncomingTransfer:
        """Grants room to a sequence that comes from some peer, which may write from here on."""
        transfer = self.reserve(client, **overrides)
        assert self.incoming.grants() == (transfer,)
        return transfer

    def adopt(
        self,
        transfer: IncomingTransfer,
        computed: int = 0,
        sampled: Mapping[int, Sequence[Sampled]] | None = None,
        firsts: Sequence[int] | None = None,
    ) -> tuple[Emission, ...]:
        """The sequence runs here from now on."""
        emissions = self.incoming.adopt(transfer, computed, sampled or {}, firsts)
        self.deliver(emissions)
        return emissions

    def grant(self, request: Request, blocks: int = 64) -> None:
        self.outgoing.grant(outgoing_of(request), blocks)

    def migrate(self, request: Request, blocks: int) -> None:
        """Migrates it to a receiver that has room for this many of its blocks."""
        self.outgoing.migrate(request, room=5, attempt=2)
        self.grant(request, blocks)

    def finish(self, request: Request) -> SequenceKV | None:
        return self.outgoing.finish(outgoing_of(request))

    def hand_over(self, request: Request, receiver: "Worker", transfer: IncomingTransfer) -> None:
        """Lets a prefill that is computed go on at its receiver."""
        kv = self.finish(request)
        assert (kv.token_ids, kv.blocks) == (tuple(request.tokens), tuple(request.blocks))
        self.transfer(kv.blocks, receiver, transfer)
        receiver.adopt(transfer, kv.computed, {choice: (sampled,) for choice, sampled in request.first.items()})
        self.outgoing.commit(outgoing_of(request))
        self.check()
        receiver.check()

    def pause(self, sequence: Client | Request) -> None:
        self.scheduler.pause(sequence.id, 1, True)

    def resume(self, sequence: Client | Request) -> None:
        self.scheduler.pause(sequence.id, 1, False)

    @property
    def load(self) -> Any:
        return self.scheduler.load()

    @property
    def counts(self) -> Any:
        return self.pool.counts()

    @property
    def idle(self) -> bool:
        return self.scheduler.idle

    def begin(self, compute: bool = True, seconds: float = inf) -> Batch | None:
        """Schedules a step of `seconds` at most; the device works immediately, or only at the end of the step."""
        self.now += 1.0
        self.flight, self.output = self.scheduler.schedule(self.now, seconds), None
        if self.flight is not None:
            self.batches.append(self.flight)
            self._check_held(self.flight)
            assert all(row.tokens for row in self.flight.rows), "a row that computes nothing"
            assert self.flight.rows or self.flight.moves or self.flight.drafting, "a step that does nothing"
            tables = {id(request.blocks) for client in self.clients for request in self.scheduler.requests(client)}
            assert all(id(row.blocks) in tables for row in self.flight.rows), "a row of one that was preempted"
            self.output = self.arena.run(self.flight) if compute else None
        return self.flight

    def begin_ahead(self, compute: bool = True) -> Batch | None:
        """Schedules the step after the one in flight, if it can be known; the device works as with `begin`."""
        assert self.flight is not None
        assert self.next is None
        self.next, self.next_output = self.scheduler.schedule_ahead(self.now), None
        if self.next is not None:
            self.batches.append(self.next)
            self._check_held(self.next)
            assert not self.next.copies
            if compute and self.output is not None:
                self.next_output = self.arena.run(self.next, self.output)
        return self.next

    def end(self, fault: bool = False) -> StepResult:
        """With `fault` nothing can be sampled for the last row. A step that is launched ahead is in flight after it."""
        assert self.flight is not None
        batch, self.flight = self.flight, self.next
        self._check_held(batch)
        if self.next is not None:
            self._check_held(self.next)
        output = self.arena.run(batch, self.before) if self.output is None else self.output
        self.before = output
        self.next, self.output, self.next_output = None, self.next_output, None
        if fault and output:
            output = (*output[:-1], tuple(Sampled(0, None, "no numbers") for _ in output[-1]))
        result = self.scheduler.process(batch, output, self.now)
        for scored in result.scored:
            self.clients[scored.request.id].take_scores(scored)
        self.deliver(result.emissions)
        self.check()
        return result

    def break_down(self) -> StepResult:
        """A step in which nothing can be sampled for its last row; other rows are sound."""
        self.begin()
        return self.end(fault=True)

    def step(self) -> StepResult | None:
        return self.end() if self.begin() is not None else None

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def run(self, *complete: Client) -> int:
        """Steps until nothing can be computed, when these must be complete; returns the number of steps."""
        for done in range(400):
            if self.step() is None:
                assert all(client.complete for client in complete)
                return done
        raise AssertionError("it never ends")

    def deliver(self, emissions: Sequence[Emission]) -> None:
        for emission in emissions:
            client = self.clients[emission.request.id]
            assert not client.over, "a token came after the end"
            client.take(emission)

    def cancel(self, client: Client) -> EndedSequences:
        client.over = True
        return self.scheduler.cancel(client.id, 99)

    def drop(self, client: Client, choice: int) -> EndedSequences:
        """Cancel one of several choices, if it has left the others here."""
        ended = self.scheduler.cancel(client.id, 99, (choice,))
        client.dropped |= {choice for _ in ended.requests}
        return ended

    def check(self) -> None:
        """Every owner's books balance, and the events are true."""
        self.scheduler.check_integrity()
        limits = self.scheduler.limits
        for request in (r for client in self.clients for r in self.scheduler.requests(client)):
            assert request.peak_blocks >= 0
            if (outgoing := transfers.outgoing_of(request)) and outgoing.migration:
                continue  # it keeps earlier blocks, or did until now: the next allocation releases them
            for window, table in zip(limits.windows, request.windows, strict=bool(request.blocks)):
                most = window_blocks(window, max(limits.chunk_tokens, 2 * limits.block_size), limits.block_size)
                most += window_blocks(window, 1, limits.block_size)  # shared with others when it started
                assert len(table.blocks) <= most, "blocks before a window are kept"
        for event in self.pool.take_events():
            self._read(event)
        assert self.known == (set(self.pool.cache), *self._usable_in_tiers())
        assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in self.numbers)

    def serve_disk(self, count: int = 1 << 20, fault: str = "") -> None:
        """Carries out this many of the oldest orders; with `fault`, reads and writes fail."""
        self.orders += self.pool.disk.take_orders()
        for _ in range(min(count, len(self.orders))):
            order = self.orders.popleft()
            if isinstance(order, RemoveBlock):
                self.files.pop(order.content, None)
                continue
            if isinstance(order, ReadBlock):
                self.arena.slots[order.slot] = [GARBAGE] * 4 if fault else list(self.files[order.content])
            elif not fault:
                self.files[order.content] = list(self.arena.slots[order.slot])
            self.scheduler.on_disk_done(Outcome(order, 0.25, fault))

    def write(self, blocks: Mapping[int, Sequence[int]]) -> None:
        """A peer's puts: content by block."""
        for block, content in blocks.items():
            self.arena.blocks[block] = list(content)

    def transfer(self, blocks: Sequence[int], receiver: "Worker", transfer: IncomingTransfer) -> None:
        """Put all of `blocks` that the receiver wants."""
        targets = transfer.blocks[transfer.cached : len(blocks)]
        contents = [self.arena.blocks[block] for block in blocks[transfer.cached :]]
        receiver.write(dict(zip(targets, contents, strict=True)))

    def _check_held(self, batch: Batch) -> None:
        """Whatever happens, nobody else gets a block that the step in flight touches."""
        windows = (table.blocks for row in batch.rows for table in row.windows)
        for blocks in (*(row.blocks for row in batch.rows), *windows, *batch.copies):
            assert all(map(self.pool.references, blocks))

    def _usable_in_tiers(self) -> tuple[set[bytes], set[bytes]]:
        """Hashes of all prefixes that arena and slots hold together, and of those that files complete."""
        host, disk = self.pool.host, self.pool.disk
        stored = {**self.pool.cache._blocks[0], **host._slot_of[0]}
        in_files = {block_hash: 0 for group, block_hash in disk._files if not group}
        of_host = set(host._prefixes.usable(stored)) if host.slots else set()
        return of_host, set(disk._prefixes.usable({**stored, **in_files})) if disk.capacity else set()

    def _read(self, event: KVEvent) -> None:
        known = self.known[event.tier]
        self.numbers[event.tier].append(event.number)
        hashes = set(split(event.hashes))
        assert known & hashes == (set() if isinstance(event, Stored) else hashes)
        known ^= hashes
