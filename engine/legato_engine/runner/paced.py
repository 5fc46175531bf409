"""A runner that computes nothing: a step takes the time from a profile, and tokens follow from the seed.

Scheduler, block pool, prefix cache, streams and hand-offs over UCX are real; KV is a few bytes for each token. Many
such workers fit on one machine, to test capacity and scaling. No torch in here.
"""

import math
import time
import zlib
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np

from legato_engine import capacity
from legato_engine.errors import UnusableProfile
from legato_engine.kvcache.layout import KVLayout
from legato_engine.runner import inputs, profile
from legato_engine.runner.interface import LoadedModel, NoSlots, Progress
from legato_engine.runner.profile import Profile
from legato_engine.scheduler.batch import Batch, Draw, Sampled, StepOutput
from legato_engine.scheduler.speculation.recorded_acceptance import RecordedAcceptance
from legato_engine.settings import WorkerSettings
from legato_engine.transfer.node import memory_file
from legato_engine.weights import config_file
from legato_protocol.model_files import model_digest
from legato_protocol.sampling.parameters import SamplingParams
from legato_protocol.wire.stream import TokenLogprobs, TopLogprob

_PROGRESS_PERIOD = 0.5  # seconds between two reports of a start

Clock = Callable[[], float]
Sleep = Callable[[float], None]


def load(
    settings: WorkerSettings,
    path: Path,
    progress: Progress,
    clock: Clock = time.monotonic,
    sleep: Sleep = time.sleep,
) -> LoadedModel:
    """Takes the start time of the profile. Reads the model's config and tokenizer, but no weights. Raises ModelError,
    SettingsError, UnusableProfile."""
    began = clock()
    assert settings.profile is not None
    given = profile.find(settings.profile).of_degree(settings.tensor)
    config = config_file.read(path)
    asked, size = settings.length_limit(config.max_length), settings.tokens_per_block
    runner = PacedRunner(given, size, config.vocab_size, model_digest.digest(path), clock, sleep)
    sizes = runner.layout.sizes(settings.tokens_per_chunk)
    longest = sizes.largest(runner.num_blocks)
    max_length = asked or min(config.max_length, longest)
    if sizes.most(max_length) > runner.num_blocks:
        raise UnusableProfile(
            f"{settings.profile}: kvTokens: {given.kv_tokens} hold {runner.num_blocks} blocks of {size} tokens; one "
            f"sequence of {max_length} tokens needs more: give a --max-length of at most {longest}"
        )
    max_running = settings.max_batch or capacity.max_running(given.kv_tokens, max_length)
    while (left := began + given.start_seconds - clock()) > 0:
        progress("loading", 1 - left / given.start_seconds)
        sleep(min(left, _PROGRESS_PERIOD))
    drafter = None
    if settings.speculation != "None":
        drafter = RecordedAcceptance(
            given.acceptance, lambda request, at: token_at(request.params, request.choice, at, config.vocab_size)
        )
    return LoadedModel(runner, runner.weights, config.vocab_size, max_length, max_running, drafter=drafter)


class PacedArena:
    """Implements `KVArena`. The KV of a token is its id, so that checksums detect lost tokens."""

    on_host = True
    parts = ()

    def __init__(self, layout: KVLayout, num_blocks: int) -> None:
        self._size = layout.block_bytes
        self._memory, self.file = memory_file.allocate(num_blocks * self._size, shared=True)
        self.slots = np.frombuffer(self._memory, np.int64)  # [num_blocks · block_size]
        self.blocks = self.slots.reshape(num_blocks, -1)
        self.host = NoSlots()

    @property
    def address(self) -> int:
        return int(self.slots.ctypes.data)

    @property
    def nbytes(self) -> int:
        return self.slots.nbytes

    def block(self, index: int) -> memoryview:
        """The bytes of one block, writable."""
        return memoryview(self._memory)[index * self._size : (index + 1) * self._size]


class PacedRunner:
    """Implements `StepRunner`. `digest` identifies the model whose tokenizer the tokens are from."""

    written = ahead = None

    def __init__(
        self, given: Profile, block_size: int, vocab_size: int, digest: str, clock: Clock, sleep: Sleep
    ) -> None:
        self.layout = KVLayout(1, 1, block_size, 1, "float32", given.windows)
        self.num_blocks = given.kv_tokens // block_size
        self.arena = PacedArena(self.layout, self.num_blocks)
        self.fallback = self.weights_fallback = ""
        self.formats = f"paced, computes nothing; times of: {given.source}; KV in {self.num_blocks} blocks"
        self.kv_revision = _digest("paced KV", given.source, digest, str(self.layout))  # of all degrees
        self.weights = _digest("paced", digest)  # without the profile, which does not change tokens
        self._times = given.step
        self._vocab_size = vocab_size
        self._clock = clock
        self._sleep = sleep
        self._free = -math.inf  # when the last step ended

    def step(self, batch: Batch) -> StepOutput:
        """Returns after the step's time, which includes the work done here.

        It also includes the time since the last step, unless that is longer than `perStep`: on a device, the next step
        is scheduled while one computes.
        """
        began = self._clock()
        if began - self._free <= self._times.per_step:
            began = self._free
        due = began + self._times.of(batch)
        for source, target in batch.copies:
            self.arena.blocks[target] = self.arena.blocks[source]
        if batch.rows:
            step = inputs.build(batch.rows, self.layout.block_size)
            for written in (step.slots, *[window.slots for window in step.windows]):
                self.arena.slots[written] = step.tokens
        output = tuple(tuple(self._draw(draw) for draw in row.draws) for row in batch.rows)
        ended = self._clock()
        if ended < due:
            self._sleep(due - ended)
        self._free = max(due, ended)
        return output

    def _draw(self, draw: Draw) -> Sampled:
        token = token_at(draw.params, draw.choice, draw.position, self._vocab_size)
        if draw.params.logprobs is None:
            return Sampled(token)
        logprob = -math.log(self._vocab_size)  # each token is as likely as any other
        best = ((token + rank) % self._vocab_size for rank in range(draw.params.logprobs))
        return Sampled(token, TokenLogprobs(logprob, tuple(TopLogprob(each, logprob) for each in best)))


def token_at(params: SamplingParams, choice: int, position: int, vocab_size: int) -> int:
    """The token of a choice at an absolute position, equal on every worker; never a stop token."""
    token = zlib.crc32(b"%d/%d/%d" % (params.seed, choice, position)) % vocab_size
    while token in params.stop_token_ids:
        token = (token + 1) % vocab_size
    return token


def _digest(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()[:32]
