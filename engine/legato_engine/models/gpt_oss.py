"""gpt-oss: Llama with sinks in attention, windows on alternate layers, biases, and experts with a clamped gate.

All but the sinks is in the config: `models.hyperparameters.experts` has the gate and the names of weights.
"""

from typing import ClassVar

from legato_engine.models.llama import Llama


class GptOss(Llama):
    sinks: ClassVar[bool] = True
