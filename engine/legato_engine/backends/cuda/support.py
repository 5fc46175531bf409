"""Sizes of models that kernels for GPUs support."""

from legato_engine.models.config import ModelConfig

BLOCK_SIZES = (16, 32, 64)
HEAD_DIMS = range(16, 257, 8)
MAX_GROUP = 16  # query heads that share a KV head
SUPPORTED = (
    f"head sizes that are multiples of 8 from {HEAD_DIMS[0]} to {HEAD_DIMS[-1]}, up to {MAX_GROUP} query heads for "
    f"each KV head, and blocks of {', '.join(map(str, BLOCK_SIZES))} tokens"
)


def mismatch(config: ModelConfig, block_size: int) -> str:
    """The reason why kernels do not support a model, or ""."""
    if config.head_dim not in HEAD_DIMS:
        return f"a head size of {config.head_dim} is not supported"
    if (group := config.heads // config.kv_heads) > MAX_GROUP:
        return f"{group} query heads for each KV head are not supported"
    if block_size not in BLOCK_SIZES:
        return f"a block size of {block_size} tokens is not supported"
    return ""
