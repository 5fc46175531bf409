"""Qwen2 and Qwen2.5: Llama with biases only on queries, keys and values, independent of the config."""

from legato_engine.models.llama import Llama


class Qwen2(Llama):
    def qkv_bias(self) -> bool:
        return True

    def output_bias(self) -> bool:
        return False
