"""Which class computes which architecture. Imports a model's module only when one is asked for."""

from importlib import import_module
from typing import TYPE_CHECKING

from legato_engine.models.architectures import ARCHITECTURES

if TYPE_CHECKING:
    from legato_engine.models.config import ModelConfig
    from legato_engine.models.llama import Llama


def model_class(config: "ModelConfig") -> "type[Llama]":
    """The class for `config.architecture`, which is a key of ARCHITECTURES: reading a config refuses others."""
    module, name = ARCHITECTURES[config.architecture]
    found: type[Llama] = getattr(import_module(module), name)
    return found
