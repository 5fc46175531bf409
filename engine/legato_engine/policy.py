"""The engine's decisions: the scheduler with its KV cache, hand-off states, chunk sizes and load reports.

The core and the simulator run the same code. Pure: time is an argument, and no device is touched. The simulator imports
nothing else of the engine.
"""

from legato_engine.capacity import max_running
from legato_engine.core.reporting.load_frame import BUSY_INTERVAL, IDLE_INTERVAL, credits, load_frame
from legato_engine.core.reporting.rates import Rates
from legato_engine.kvcache.block_pool import BlockPool
from legato_engine.kvcache.events import EventLog
from legato_engine.kvcache.sequence_sizes import SequenceSizes
from legato_engine.runner.profile import Profile, Speculated, StepTimes
from legato_engine.scheduler.batch import Batch, Sampled
from legato_engine.scheduler.handoff.transfers import IncomingTransfer, OutgoingState, OutgoingTransfer, outgoing_of
from legato_engine.scheduler.planning.chunk_budget import ChunkBudget, pairs
from legato_engine.scheduler.planning.step_cost import FORGET
from legato_engine.scheduler.queueing.admission import REUSE_WINDOW, REUSED
from legato_engine.scheduler.queueing.output_lengths import OutputLengthWindow
from legato_engine.scheduler.requests.limits import RequestRejected, SchedulerLimits
from legato_engine.scheduler.requests.request import Request, RequestState
from legato_engine.scheduler.results import Emission, SequenceKV, StepResult
from legato_engine.scheduler.scheduler import Scheduler
from legato_engine.scheduler.speculation.recorded_acceptance import RecordedAcceptance
from legato_engine.settings import BLOCK_SIZES, CHUNK_TOKENS
from legato_engine.transfer.fakes.virtual_time import VirtualTime

__all__ = [
    "BLOCK_SIZES",
    "BUSY_INTERVAL",
    "CHUNK_TOKENS",
    "FORGET",
    "IDLE_INTERVAL",
    "REUSED",
    "REUSE_WINDOW",
    "Batch",
    "BlockPool",
    "ChunkBudget",
    "Emission",
    "EventLog",
    "IncomingTransfer",
    "OutgoingState",
    "OutgoingTransfer",
    "OutputLengthWindow",
    "Profile",
    "Rates",
    "RecordedAcceptance",
    "Request",
    "RequestRejected",
    "RequestState",
    "Sampled",
    "Scheduler",
    "SchedulerLimits",
    "SequenceKV",
    "SequenceSizes",
    "Speculated",
    "StepResult",
    "StepTimes",
    "VirtualTime",
    "credits",
    "load_frame",
    "max_running",
    "outgoing_of",
    "pairs",
]
