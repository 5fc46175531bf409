"""The marks around models' reasoning, chosen by the model's chat template or by a setting."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

AUTO: Final = "Auto"
OFF: Final = "Off"


@dataclass(frozen=True, slots=True)
class Marks:
    """Reasoning is between `open` and `close`."""

    open: str
    close: str


FAMILIES: Final = MappingProxyType(
    {
        "Think": Marks("<think>", "</think>"),  # DeepSeek R1 and its distillations, QwQ, Qwen 3 and most others
        "Mistral": Marks("[THINK]", "[/THINK]"),  # Magistral and Ministral
    }
)
SETTINGS: Final = (AUTO, *FAMILIES, OFF)


def from_template(template: str | None) -> str | None:
    """Returns the family whose marks a chat template contains, or None."""
    for family, marks in FAMILIES.items():
        if template is not None and (marks.open in template or marks.close in template):
            return family
    return None
