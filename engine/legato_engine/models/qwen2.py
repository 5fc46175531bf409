"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values, whatever the config says of others."""

from legato_engine.models.llama import Llama


class Qwen2(Llama):
    def qkv_bias(self) -> bool:
        return True

    def output_bias(self) -> bool:
        return False
