"""How many prompt tokens the workers of a manifest compute in one step."""

from legato_engine.policy import CHUNK_TOKENS
from legato_operator.policy import Spec, roles


def of(spec: Spec) -> int:
    """At most; `Auto` as suits what the pools request."""
    if spec.engine.chunk_tokens != "Auto":
        return spec.engine.chunk_tokens
    return CHUNK_TOKENS["cuda" if any(roles.gpus(spec, role) for role in roles.with_pool(spec)) else "cpu"]
