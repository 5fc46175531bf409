"""SmolLM3: Llama with some layers that have no rotary embedding."""

from legato_engine.models.llama import Llama


class SmolLM3(Llama):
    pass
