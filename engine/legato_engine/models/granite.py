"""Granite 3: Llama with multipliers of embeddings, scores, residuals and logits, which the config sets."""

from legato_engine.models.llama import Llama


class Granite(Llama):
    pass
