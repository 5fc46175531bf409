"""A runner of a model and of the model that drafts tokens for it."""

from typing import Any, NamedTuple

from legato_engine.runner.drafting.draft_model import DraftModel
from legato_engine.runner.interface import KVArena
from legato_engine.runner.runner import Runner
from legato_engine.scheduler.batch import Batch, StepOutput
from legato_engine.transfer.device.interface import DeviceEvent


class _Drafted(NamedTuple):
    """A step of the draft model, which is over when its launch returns."""

    output: StepOutput


class SpeculatingRunner:
    """Implements `StepRunner`. Only the model's own KV leaves the worker."""

    def __init__(self, model: Runner, draft: DraftModel) -> None:
        self._model = model
        self._draft = draft
        self.layout = model.layout
        self.num_blocks = model.num_blocks
        self.kv_revision = model.kv_revision
        self.formats = f"{model.formats}; draft model: {draft.runner.formats}"
        self.fallback = "; ".join(filter(None, (model.fallback, draft.runner.fallback)))
        self.weights_fallback = "; ".join(filter(None, (model.weights_fallback, draft.runner.weights_fallback)))

    @property
    def arena(self) -> KVArena:
        return self._model.arena

    @property
    def written(self) -> DeviceEvent | None:
        return self._model.written

    @property
    def ahead(self) -> "SpeculatingRunner | None":
        return self if self._model.ahead is not None else None

    def step(self, batch: Batch) -> StepOutput:
        return self._drafted(batch) if batch.drafting else self._model.step(batch)

    def launch(self, batch: Batch) -> Any:
        return _Drafted(self._drafted(batch)) if batch.drafting else self._model.launch(batch)

    def collect(self, launched: Any) -> StepOutput:
        return launched.output if isinstance(launched, _Drafted) else self._model.collect(launched)

    def _drafted(self, batch: Batch) -> StepOutput:
        if batch.moves:  # of the model's blocks
            self._model.step(Batch((), moves=batch.moves))
        return self._draft.draft(batch.drafting)
