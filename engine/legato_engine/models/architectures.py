"""Supported architectures by their names in `config.json`, with the module and class of each. Imports nothing."""

ARCHITECTURES = {
    "LlamaForCausalLM": ("legato_engine.models.llama", "Llama"),
    "MistralForCausalLM": ("legato_engine.models.mistral", "Mistral"),
    "Qwen2ForCausalLM": ("legato_engine.models.qwen2", "Qwen2"),
    "Qwen3ForCausalLM": ("legato_engine.models.qwen3", "Qwen3"),
}
