"""Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: Llama with fused projections."""

from typing import ClassVar

from legato_engine.models.llama import Llama


class Phi3(Llama):
    fused: ClassVar[bool] = True
