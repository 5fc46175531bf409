"""Puts a core together: model, arena, scheduler and hand-off, from settings. The slow part of a start."""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from legato_engine import memory
from legato_engine.core.channel import Channel
from legato_engine.core.compute import ComputeThread
from legato_engine.core.heartbeat import Pulse
from legato_engine.core.loop import Core
from legato_engine.kvcache.block_pool import BlockPool
from legato_engine.kvcache.events import EventLog
from legato_engine.runner import population
from legato_engine.runner.interface import StepRunner
from legato_engine.runner.runner import Runner
from legato_engine.scheduler.limits import SchedulerLimits
from legato_engine.scheduler.scheduler import Scheduler
from legato_engine.settings import WorkerSettings
from legato_engine.transfer.agent import TransferAgent
from legato_engine.transfer.checksum import ArenaMemory
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.opening import open_weights
from legato_protocol import model_digest
from legato_protocol.flags import SettingsError
from legato_protocol.stream import Hello

Progress = Callable[[str, float], None]
Clock = Callable[[], float]

PREFILL_NICENESS = 5  # a third of the weight of a thread that decodes, or of any other program's


@dataclass(frozen=True)
class CoreParts:
    """Everything that a core is made of, ready to run."""

    hello: Hello
    formats: str
    vocab_size: int
    compute: ComputeThread
    runner: StepRunner
    scheduler: Scheduler
    events: EventLog
    agent: TransferAgent | None
    limits: SchedulerLimits
    clock: Clock

    def core(self, channel: Channel, pulse: Pulse) -> Core:
        return Core(
            channel,
            self.compute,
            self.runner,
            self.scheduler,
            self.events,
            self.agent,
            kv_revision=self.hello.kv_revision,
            clock=self.clock,
            max_waiting=self.limits.max_waiting,
            pulse=pulse,
        )

    def close(self) -> None:
        if self.agent is not None:
            self.agent.close()


def load(settings: WorkerSettings, path: Path, epoch: str, progress: Progress, clock: Clock) -> CoreParts:
    """Reads the model, makes one token and registers the arena. Raises EngineError, SettingsError, LinkError."""
    checkpoint = open_weights(path)
    most = checkpoint.config.max_length
    max_length = settings.max_length or most
    if max_length > most:
        raise SettingsError(f"--max-length is {max_length}; this model allows at most {most}")
    if settings.device != "cpu" and settings.transport != "None":
        raise SettingsError(
            f"--device: {settings.device} computes, but cannot hand KV off yet: hand-off reads the host's memory (use "
            "--transport None and a unified worker, or --device cpu)"
        )
    compute = ComputeThread(niceness(settings))
    runner = compute.call(lambda: _runner(settings, checkpoint, max_length, progress))
    limits = scheduler_limits(settings, max_length)
    events = EventLog(epoch)
    scheduler = Scheduler(limits, BlockPool(runner.num_blocks, events), runner.kv_revision)
    agent = None if settings.transport == "None" else _agent(settings, runner, epoch, clock)
    fingerprints = checkpoint.fingerprint, model_digest.of(path)
    hello = _hello(settings, runner, epoch, fingerprints, max_length, agent)
    vocab_size = checkpoint.config.vocab_size
    return CoreParts(hello, runner.formats, vocab_size, compute, runner, scheduler, events, agent, limits, clock)


def niceness(settings: WorkerSettings) -> int:
    """Prompts give way to tokens: where workers share cores, those that decode take what they need, prefill the rest.

    Linux weighs processes so within one session (`sched_autogroup_enabled`) and one control group, not between them.
    """
    return PREFILL_NICENESS if settings.role == "prefill" and settings.device == "cpu" else 0


def scheduler_limits(settings: WorkerSettings, max_length: int) -> SchedulerLimits:
    """What these settings let a scheduler do with sequences of at most `max_length` tokens."""
    return SchedulerLimits(
        role=settings.role,
        block_size=settings.block_size,
        max_length=max_length,
        chunk_tokens=settings.chunk_tokens,
        tpot=settings.slo_tpot,
        reserve_maximum=settings.output_reservation == "Maximum",
        max_running=settings.max_batch,
    )


def _runner(settings: WorkerSettings, checkpoint: Checkpoint, max_length: int, progress: Progress) -> Runner:
    """The model, which has made a token."""
    runner = Runner.load(
        checkpoint,
        block_size=settings.block_size,
        kv_cache_bytes=settings.kv_cache_memory,
        dtype=settings.dtype,
        kv_dtype=settings.kv_cache_dtype,
        device=settings.device,
        threads=settings.threads,
        max_length=max_length,
        available=_available(settings),
        chunk_tokens=settings.chunk_tokens,
        max_batch=settings.max_batch,
        progress=lambda _what, share: progress("loading", share),
    )
    if settings.device == "cpu":
        population.start(runner.arena)  # not before: workers that start together first find out what is free
    progress("warming up", 0.0)
    runner.warm_up()
    memory.give_back()
    return runner


def _available(settings: WorkerSettings) -> int:
    """Bytes that this worker may take: with Auto its share of what is free, else all of that."""
    free = memory.available()
    if settings.device == "cuda" and torch.cuda.is_available():  # `Runner.load` refuses one that is not there
        free = torch.cuda.mem_get_info()[0]
    return free // settings.memory_share if settings.kv_cache_memory is None else free


def _agent(settings: WorkerSettings, runner: Runner, epoch: str, clock: Clock) -> TransferAgent:
    from legato_engine.transfer import ucx

    arena = runner.arena
    link = ucx.open(settings.transport, _reachable(settings), arena.address, arena.nbytes, settings.transfer_ports)
    return TransferAgent(
        link,
        ArenaMemory(arena.blocks, runner.num_blocks),
        worker=settings.name,
        epoch=epoch,
        kv_revision=runner.kv_revision,
        layout=str(runner.layout),
        block_size=settings.block_size,
        token=settings.token,
        checksum=settings.checksum,
        lease=settings.lease,
        clock=clock,
    )


def _reachable(settings: WorkerSettings) -> str:
    """Where other workers find this one. Listening on all addresses says nothing, so the host's own name decides."""
    host = settings.transfer_host or settings.host
    return socket.gethostbyname(socket.gethostname()) if host in ("0.0.0.0", "::") else host


def _hello(
    settings: WorkerSettings,
    runner: Runner,
    epoch: str,
    fingerprints: tuple[str, str],
    max_length: int,
    agent: TransferAgent | None,
) -> Hello:
    weights, model = fingerprints
    return Hello(
        worker=settings.name,
        epoch=epoch,
        role=settings.role,
        kv_revision=runner.kv_revision,
        weights=weights,
        layout=str(runner.layout),
        block_size=settings.block_size,
        num_blocks=runner.num_blocks,
        max_length=max_length,
        address=agent.address if agent else b"",
        transport=agent.transport if agent else "none",
        pod_revision=settings.pod_revision,
        model=model,
    )
