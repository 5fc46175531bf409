"""Builds a core from settings: model, arena, scheduler and hand-offs. This is the slow part of a start."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from legato_engine.adapters.catalog import AdapterCatalog
from legato_engine.adapters.resident import ResidentAdapters
from legato_engine.core.compute import ComputeThread
from legato_engine.core.disk.block_folder import BlockFolder
from legato_engine.core.disk.disk_thread import DiskThread
from legato_engine.core.frames import Ready, Start
from legato_engine.core.handoff.link import HandoffLink, LinkOpener
from legato_engine.core.handoff.node_memory import NodeChoice, NodeOpener
from legato_engine.core.loop import CoreParts
from legato_engine.core.profiling import Profiling
from legato_engine.core.slices.slices import OwnCores, SharedCores, TimeSlices
from legato_engine.core.slices.table import TableFull
from legato_engine.errors import StartFailed
from legato_engine.grammars import compilations
from legato_engine.grammars.compilations import Compilations
from legato_engine.kvcache.block_pool import BlockPool, TierSizes
from legato_engine.kvcache.events import EventLog
from legato_engine.runner.interface import LoadedModel, Progress, StepRunner
from legato_engine.scheduler.requests.limits import SchedulerLimits
from legato_engine.scheduler.scheduler import Scheduler
from legato_engine.scheduler.speculation import drafters
from legato_engine.settings import WorkerSettings
from legato_engine.transfer.agent import TransferAgent
from legato_engine.transfer.blocks.checksum import ArenaMemory
from legato_engine.transfer.connections.certificates import HandoffCertificates
from legato_engine.transfer.connections.channels import Channels
from legato_engine.transfer.identity import TransferArena, TransferIdentity, TransferPolicy
from legato_protocol.model_files import model_digest
from legato_protocol.process.followed_files import InvalidFile
from legato_protocol.sampling.parameters import LATER_PARAMS
from legato_protocol.settings.flags import SettingsError
from legato_protocol.wire.kv_events import TIERS
from legato_protocol.wire.stream import OLDEST, Hello

Clock = Callable[[], float]
Load = Callable[[WorkerSettings, Path, Progress], LoadedModel]

PROMPT_NICENESS = 5  # a third of the CPU weight of niceness 0: with a tenth, other busy programs starved prompts


def load(start: Start, progress: Progress, clock: Clock) -> tuple[CoreParts, Ready]:
    """Loads the model, opens the listed adapters and registers the arena.

    Returns the core's parts, and the message that reports to the server that it serves. Raises EngineError,
    SettingsError, LinkError.
    """
    settings, path, epoch, listed = start.settings, Path(start.path), start.epoch, start.adapters
    load_model = _loader(settings, None if start.draft_path is None else Path(start.draft_path))
    compute = ComputeThread(niceness(settings))
    model = compute.call(lambda: load_model(settings, path, progress))
    if settings.runner == "model" and settings.device == "cpu":
        from legato_engine.backends.sharded.rank import Rank
        from legato_engine.runner import cores  # torch is loaded by now

        compute.call(partial(cores.bind, Rank(0, settings.tensor)))
    runner = model.runner
    limits = scheduler_limits(settings, model.max_length, model.max_running, runner.layout.windows)
    layout = runner.layout
    pool = BlockPool(
        runner.num_blocks, EventLog(epoch), layout.windows, layout.block_size, _tier_sizes(settings, runner)
    )
    disk = _disk(settings, runner, pool)
    drafter = model.drafter or drafters.make(settings.speculation, pool, limits.block_size, model.draft)
    scheduler = Scheduler(limits, pool, runner.kv_revision, drafter)
    carrier = agent = None
    node = NodeChoice()
    if settings.transport != "None":
        memory = ArenaMemory(runner.arena.blocks, runner.num_blocks, len(runner.arena.parts) or 1)
        opener = LinkOpener(settings, runner, model.max_length, progress)
        carrier = opener.open()
        node = NodeOpener(settings, runner, memory, epoch, lambda: opener.sums.sums).open(clock)
        agent = _agent(settings, runner, _arena(settings, runner, memory, carrier, node), carrier, epoch, clock)
    # The paced runner makes up tokens, which would not match a grammar.
    grammars = compilations.open_model(path, model.vocab_size) if settings.runner == "model" else Compilations(None)
    adapters = ResidentAdapters(model.adapters, settings.adapters_in_memory, scheduler.adapters)
    catalog = None
    if listed is not None and model.open_adapter is not None:
        progress("opening adapters", 0.0)
        catalog = AdapterCatalog(adapters, model.open_adapter, clock)
        catalog.begin(listed)
    hello = _hello(settings, model, epoch, model_digest.digest(path), agent, grammars, adapters)
    hello = msgspec.structs.replace(hello, tiers=tuple([TIERS.index(name) for name in pool.tier_counts()]))
    profiling = Profiling(compute, model.profiler, clock)
    slices = open_slices(settings, clock)
    model.between_layers(slices.give_way)
    parts = CoreParts(compute, runner, scheduler, agent, grammars, adapters, catalog, profiling, slices, clock, disk)
    return parts, _ready(hello, model, carrier, node, catalog)


def _tier_sizes(settings: WorkerSettings, runner: StepRunner) -> TierSizes:
    """Raises StartFailed for a size that holds no block."""
    if settings.runner == "paced":
        return TierSizes()
    sizes = {"hostKVMemory": settings.host_kv_memory, "diskKV.size": settings.disk_kv_size or 0}
    for name, size in sizes.items():
        if 0 < size < runner.layout.block_bytes:
            raise StartFailed(f"{name} is {size:,} bytes; one block of KV is {runner.layout.block_bytes:,}")
    return TierSizes(runner.arena.host.count, sizes["diskKV.size"] // runner.layout.block_bytes)


def _disk(settings: WorkerSettings, runner: StepRunner, pool: BlockPool) -> DiskThread | None:
    """Opens the folder of KV files, and adopts the files of an earlier worker. Raises StartFailed."""
    if settings.disk_kv_path is None or not pool.disk.capacity:
        return None
    if runner.arena.parts:
        raise StartFailed("diskKV is only available with one rank, or on CPUs: blocks have parts on several GPUs")
    folder = BlockFolder.open(Path(settings.disk_kv_path), runner.kv_revision, runner.layout.block_bytes)
    contents = folder.contents()
    pool.disk.adopt(contents, folder.refused)
    return DiskThread(folder, runner.arena.host.slot)


def _ready(
    hello: Hello, model: LoadedModel, carrier: HandoffLink | None, node: NodeChoice, catalog: AdapterCatalog | None
) -> Ready:
    runner = model.runner
    fallbacks = (runner.fallback, runner.weights_fallback, carrier.kernel_fallback if carrier else "")
    return Ready(
        hello,
        runner.formats,
        model.vocab_size,
        catalog.offer if catalog is not None else None,
        "; ".join(filter(None, fallbacks)),
        "; ".join(filter(None, (carrier.reason if carrier else "", node.reason))),
        node.fallback or (carrier is not None and carrier.fallback),
        model.gpus,
    )


def _loader(settings: WorkerSettings, draft_path: Path | None) -> Load:
    if settings.runner == "paced":
        from legato_engine.runner import paced

        return paced.load
    from legato_engine.runner import loading  # torch is loaded here

    return partial(loading.load, draft_path=draft_path)


def niceness(settings: WorkerSettings) -> int:
    """Niceness of the compute thread: prompts yield to tokens of workers on the same cores.

    Linux compares niceness within one session (`sched_autogroup_enabled`) and one control group, not between them.
    """
    return PROMPT_NICENESS if settings.role == "prefill" and _takes_slices(settings) else 0


def _takes_slices(settings: WorkerSettings) -> bool:
    return settings.time_slices is not None and settings.runner == "model" and settings.device == "cpu"


def open_slices(settings: WorkerSettings, clock: Clock) -> TimeSlices:
    """Opens the time slices of a worker that computes on cores. Raises SettingsError."""
    if settings.time_slices is None or not _takes_slices(settings):
        return OwnCores()
    cores, ranks = len(os.sched_getaffinity(0)), settings.tensor
    threads = (settings.threads or max(1, cores // ranks)) * ranks
    try:
        return SharedCores(Path(settings.time_slices), threads, cores, clock)
    except (OSError, TableFull) as error:
        raise SettingsError(f"--time-slices: {error}") from None


def scheduler_limits(
    settings: WorkerSettings, max_length: int, max_running: int, windows: tuple[int, ...] = ()
) -> SchedulerLimits:
    """The scheduler's limits from these settings, for `max_running` sequences of at most `max_length` tokens.

    `windows` has a window for each group of layers after the first, whose blocks hold one chunk. Otherwise, a prompt
    that runs alone on a GPU may take the room that its workspace has for decodes."""
    chunk, lone = settings.tokens_per_chunk, 0
    if settings.device == "cuda" and settings.chunk_tokens is None and not windows:
        lone = (chunk + max_running) // settings.tokens_per_block * settings.tokens_per_block
    return SchedulerLimits(
        role=settings.role,
        block_size=settings.tokens_per_block,
        max_length=max_length,
        chunk_tokens=chunk,
        lone_chunk=lone,
        tpot=settings.slo_tpot,
        reserve_maximum=settings.output_reservation == "Maximum",
        max_running=max_running,
        windows=windows,
        drafts=settings.most_drafts,
    )


def _arena(
    settings: WorkerSettings, runner: StepRunner, memory: ArenaMemory, carrier: HandoffLink, node: NodeChoice
) -> TransferArena:
    first_blocks, size = runner.layout.sizes(settings.tokens_per_chunk).first_blocks, settings.tokens_per_block
    return TransferArena(memory, size, carrier.staging, carrier.direct, first_blocks, node.memory)


def _agent(
    settings: WorkerSettings, runner: StepRunner, arena: TransferArena, carrier: HandoffLink, epoch: str, clock: Clock
) -> TransferAgent:
    """Raises SettingsError."""
    layout, channels = str(runner.layout), _channels(settings)
    identity = TransferIdentity(settings.name, epoch, runner.kv_revision, layout, settings.token, channels)
    return TransferAgent(carrier.link, arena, identity, clock, TransferPolicy(settings.checksum, settings.lease))


def _channels(settings: WorkerSettings) -> Channels:
    """Raises SettingsError for certificates that other workers would refuse."""
    if settings.internal_tls_folder is None:
        return Channels()
    try:
        certificates = HandoffCertificates(Path(settings.internal_tls_folder), settings.internal_tls_name)
    except InvalidFile as error:
        raise SettingsError(f"--internal-tls-folder {error}") from None
    return Channels(certificates, strict=not settings.plain_control)


def _hello(
    settings: WorkerSettings,
    model: LoadedModel,
    epoch: str,
    digest: str,
    agent: TransferAgent | None,
    grammars: Compilations,
    adapters: ResidentAdapters,
) -> Hello:
    runner = model.runner
    return Hello(
        worker=settings.name,
        epoch=epoch,
        role=settings.role,
        kv_revision=runner.kv_revision,
        weights=model.weights,
        layout=str(runner.layout),
        block_size=settings.tokens_per_block,
        windows=runner.layout.windows,
        num_blocks=runner.num_blocks,
        max_length=model.max_length,
        address=agent.address if agent else b"",
        transport=agent.transport if agent else "none",
        pod_revision=settings.pod_revision,
        model=digest,
        oldest=OLDEST,
        grammars=grammars.kinds,
        params=LATER_PARAMS if settings.runner == "model" else (),  # the paced runner ignores sampling parameters
        adapters=dict(adapters.offered),
        handoff_tls=agent is not None and settings.internal_tls_folder is not None,
        ranks=settings.tensor,
    )
