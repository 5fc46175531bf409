"""The methods that draft tokens, by the names that settings use."""

from legato_engine.kvcache.block_pool import BlockPool
from legato_engine.scheduler.speculation.drafter import Drafter
from legato_engine.scheduler.speculation.model_drafter import DraftLimits, ModelDrafter
from legato_engine.scheduler.speculation.prompt_lookup import PromptLookup


def make(method: str, pool: BlockPool, block_size: int, draft: DraftLimits | None) -> Drafter | None:
    """A drafter of this method; None for `None`, the method that drafts nothing. `draft` is the draft model."""
    if method == "PromptLookup":
        return PromptLookup()
    return None if draft is None else ModelDrafter(pool, block_size, draft)
