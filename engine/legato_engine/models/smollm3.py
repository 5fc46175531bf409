"""SmolLM3: Llama, of which some layers have no rotary embedding."""

from legato_engine.models.llama import Llama


class SmolLM3(Llama):
    pass
