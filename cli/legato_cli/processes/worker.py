"""`legato worker`: one engine replica."""

import os
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from legato_cli.errors import CannotRun
from legato_engine import settings

HELP = "run one engine replica: prefill, decode or both"
add_flags = settings.add_flags


def run(flags: Namespace) -> int:
    """Serves until the worker is stopped. Raises CannotRun and SettingsError."""
    from legato_engine import main
    from legato_engine.errors import EngineError

    try:
        return main.run(settings.read(flags, os.environ), _resolve)
    except EngineError as error:
        raise CannotRun(str(error)) from None


def _resolve(model: str, progress: Callable[[str], None]) -> Path:
    from legato_cli.models.model import ModelUnavailable, resolve
    from legato_engine.errors import ModelNotFound

    try:
        return resolve(model, progress)
    except ModelUnavailable as error:
        raise ModelNotFound(str(error)) from error
