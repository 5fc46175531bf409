"""`legato worker`: one engine replica."""

import os
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from legato_cli.errors import CannotRun

if TYPE_CHECKING:
    from argparse import ArgumentParser, _SubParsersAction


def add_parser(subparsers: "_SubParsersAction[ArgumentParser]") -> None:
    """Adds the subcommand. Its flags come from `legato_engine.settings`, which imports no torch."""
    from legato_engine import settings

    parser = subparsers.add_parser("worker", help="run one engine replica: prefill, decode or both")
    settings.add_flags(parser)
    parser.set_defaults(run=run)


def run(flags: Namespace) -> int:
    """Serves until the worker is stopped. Raises CannotRun and SettingsError."""
    from legato_engine import main, settings
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
