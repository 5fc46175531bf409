"""The architectures that can be computed, as `config.json` names them, and where each class is. Imports nothing."""

ARCHITECTURES = {
    "LlamaForCausalLM": ("legato_engine.models.llama", "Llama"),
    "MistralForCausalLM": ("legato_engine.models.llama", "Llama"),
}
