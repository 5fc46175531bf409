"""The class of each architecture. Imports a model's module only when it is requested."""

from importlib import import_module
from typing import TYPE_CHECKING

from legato_engine.models.architectures import ARCHITECTURES

if TYPE_CHECKING:
    from legato_engine.models.config import ModelConfig
    from legato_engine.models.llama import Llama


def model_class(config: "ModelConfig") -> "type[Llama]":
    """The class for `config.architecture`, a key of ARCHITECTURES: `models.config` refuses others."""
    known = ARCHITECTURES[config.architecture]
    model: type[Llama] = getattr(import_module(known.module), known.model)
    return model
