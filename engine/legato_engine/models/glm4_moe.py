"""GLM-4.5 to 4.7: Llama with experts after the first layers, half of each head rotated, and norms and biases by config.

The first layers have an MLP. `models.hyperparameters.experts` has the names and the routing of the others.
"""

from legato_engine.models.llama import Llama


class Glm4Moe(Llama):
    def has_qk_norm(self) -> bool:
        return self.config.qk_norm

    def output_bias(self) -> bool:
        return False
