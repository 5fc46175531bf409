"""Qwen3: Llama with an RMSNorm over each head's query and key, before the rotation."""

from typing import ClassVar

from legato_engine.models.llama import Llama


class Qwen3(Llama):
    qk_norm: ClassVar[bool] = True
