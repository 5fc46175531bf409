"""Names of the parsers of models' answers, in manifests and in the gateway's flags."""

from typing import Literal

ToolCallSetting = Literal[
    "Auto",
    "Hermes",
    "Llama3Json",
    "Mistral",
    "Pythonic",
    "Qwen3Coder",
    "Phi4Mini",
    "Granite",
    "DeepSeek",
    "KimiK2",
    "GLM",
    "Gemma",
    "Harmony",
    "Off",
]
ReasoningSetting = Literal["Auto", "Think", "Mistral", "Granite", "Harmony", "Off"]
