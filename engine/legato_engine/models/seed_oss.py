"""Seed-OSS: Llama whose config sets the biases of attention's inputs and of its output separately."""

from legato_engine.models.llama import Llama


class SeedOss(Llama):
    def output_bias(self) -> bool:
        return self.config.attention_out_bias
