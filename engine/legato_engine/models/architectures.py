"""The architectures that can be computed, as `config.json` names them, and where each class is. Imports nothing."""

ARCHITECTURES = {
    "LlamaForCausalLM": ("legato_engine.models.llama", "Llama"),
    "MistralForCausalLM": ("legato_engine.models.mistral", "Mistral"),
    "Qwen2ForCausalLM": ("legato_engine.models.qwen2", "Qwen2"),
    "Qwen3ForCausalLM": ("legato_engine.models.qwen3", "Qwen3"),
}
