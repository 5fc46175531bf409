"""Granite 3: Llama with multipliers of embeddings, scores, residuals and logits, which are constants of the config."""

from legato_engine.models.llama import Llama


class Granite(Llama):
    pass
