"""The chunk size of a manifest's workers."""

from legato_engine.policy import CHUNK_TOKENS
from legato_operator.policy import Spec, roles


def chunk_tokens(spec: Spec) -> int:
    """Returns the most prompt tokens of a step; `Auto` depends on whether a pool requests GPUs."""
    if spec.engine.chunk_tokens != "Auto":
        return spec.engine.chunk_tokens
    return CHUNK_TOKENS["cuda" if any(roles.gpus(spec, role) for role in roles.with_pool(spec)) else "cpu"]
