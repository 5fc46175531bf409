"""Mistral: Llama with a sliding window, which the config tells, and without biases."""

from legato_engine.models.llama import Llama


class Mistral(Llama):
    def qkv_bias(self) -> bool:
        return False

    def output_bias(self) -> bool:
        return False
