"""Supported architectures by their names in `config.json`. Imports nothing of the engine."""

from collections.abc import Iterator
from typing import NamedTuple


class Architecture(NamedTuple):
    """A family of models. `models` and `repositories` are examples in words; `gguf` is llama.cpp's name, `tools` the
    format of tool calls that the chat templates of these models show."""

    module: str
    model: str  # the class in `module`
    models: str
    repositories: tuple[str, ...]
    gguf: str = ""
    tools: str = ""


_LLAMA = "legato_engine.models.llama", "Llama"  # some families differ from Llama only in their configs
ARCHITECTURES = {
    "LlamaForCausalLM": Architecture(
        *_LLAMA, "Llama 2 and 3, SmolLM2, TinyLlama",
        ("meta-llama/Llama-3.1-8B-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"), "llama", "Llama3Json",
    ),
    "MistralForCausalLM": Architecture(
        *_LLAMA, "Mistral", ("mistralai/Mistral-7B-Instruct-v0.3",), "llama", "Mistral"
    ),
    "Qwen2ForCausalLM": Architecture(
        "legato_engine.models.qwen2", "Qwen2", "Qwen2, Qwen2.5", ("Qwen/Qwen2.5-7B-Instruct",), "qwen2", "Hermes"
    ),
    "Qwen3ForCausalLM": Architecture(
        "legato_engine.models.qwen3", "Qwen3", "Qwen3 without experts", ("Qwen/Qwen3-32B",), "qwen3", "Hermes"
    ),
    "Qwen3MoeForCausalLM": Architecture(
        "legato_engine.models.qwen3", "Qwen3", "Qwen3 with experts, Qwen3-Coder",
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen/Qwen3-Coder-30B-A3B-Instruct"), "qwen3moe", "Hermes, Qwen3Coder",
    ),
    "Qwen2MoeForCausalLM": Architecture(
        "legato_engine.models.qwen2", "Qwen2", "Qwen1.5-MoE, Qwen2 with experts",
        ("Qwen/Qwen1.5-MoE-A2.7B-Chat",), "qwen2moe",
    ),
    "MixtralForCausalLM": Architecture(
        *_LLAMA, "Mixtral", ("mistralai/Mixtral-8x7B-Instruct-v0.1",), "llama", "Mistral"
    ),
    "Phi3ForCausalLM": Architecture(
        "legato_engine.models.phi3", "Phi3", "Phi-3, Phi-3.5, Phi-4, Phi-4-mini",
        ("microsoft/phi-4", "microsoft/Phi-4-mini-instruct"), "phi3", "Phi4Mini",
    ),
    "Gemma3ForCausalLM": Architecture(
        "legato_engine.models.gemma3", "Gemma3", "Gemma 3 (text, also of `Gemma3ForConditionalGeneration`)",
        ("google/gemma-3-1b-it", "google/gemma-3-12b-it"), "gemma3", "none; FunctionGemma: Gemma",
    ),
    "GraniteForCausalLM": Architecture(
        *_LLAMA, "Granite 3", ("ibm-granite/granite-3.3-8b-instruct",), "granite", "Granite"
    ),
    "GraniteMoeForCausalLM": Architecture(
        *_LLAMA, "Granite 3 with experts", ("ibm-granite/granite-3.1-3b-a800m-instruct",), "granitemoe", "Granite"
    ),
    "Olmo2ForCausalLM": Architecture(
        "legato_engine.models.olmo2", "Olmo2", "OLMo 2", ("allenai/OLMo-2-1124-7B-Instruct",), "olmo2"
    ),
    "Olmo3ForCausalLM": Architecture(
        "legato_engine.models.olmo2", "Olmo2", "Olmo 3", ("allenai/Olmo-3-7B-Instruct", "allenai/Olmo-3.1-32B-Think")
    ),
    "OlmoeForCausalLM": Architecture(
        "legato_engine.models.olmo2", "Olmoe", "OLMoE", ("allenai/OLMoE-1B-7B-0924-Instruct",), "olmoe"
    ),
    "GptOssForCausalLM": Architecture(
        "legato_engine.models.gpt_oss", "GptOss", "gpt-oss", ("openai/gpt-oss-20b", "openai/gpt-oss-120b"), "gpt-oss",
        "Harmony",
    ),
    "Glm4MoeForCausalLM": Architecture(
        "legato_engine.models.glm4_moe", "Glm4Moe", "GLM-4.5 to 4.7, also Air",
        ("zai-org/GLM-4.5-Air", "zai-org/GLM-4.7"), "glm4moe", "GLM",
    ),
    "SeedOssForCausalLM": Architecture(
        "legato_engine.models.seed_oss", "SeedOss", "Seed-OSS", ("ByteDance-Seed/Seed-OSS-36B-Instruct",), "seed_oss"
    ),
    "Exaone4ForCausalLM": Architecture(
        "legato_engine.models.olmo2", "Exaone4", "EXAONE 4", ("LGAI-EXAONE/EXAONE-4.0-32B",), "", "Hermes"
    ),
    "SmolLM3ForCausalLM": Architecture(
        *_LLAMA, "SmolLM3", ("HuggingFaceTB/SmolLM3-3B",), "smollm3", "Hermes"
    ),
}  # fmt: skip


def table() -> Iterator[str]:
    """The rows of ARCHITECTURES as a table in Markdown, for docs/models.md."""
    yield "| architecture in `config.json` | models | GGUF | tool calls |"
    yield "| --- | --- | --- | --- |"
    for name, each in ARCHITECTURES.items():
        repositories = ", ".join(f"`{repository}`" for repository in each.repositories)
        gguf = f" `{each.gguf}` |" if each.gguf else " |"
        yield f"| `{name}` | {each.models}: {repositories} |{gguf} {each.tools or 'none'} |"
