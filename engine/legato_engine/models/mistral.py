"""Mistral: Llama with the config's sliding window and without biases."""

from legato_engine.models.llama import Llama


class Mistral(Llama):
    def qkv_bias(self) -> bool:
        return False

    def output_bias(self) -> bool:
        return False
