"""`legato worker`: one engine replica."""

import os
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import ArgumentParser, _SubParsersAction


def add_parser(subparsers: "_SubParsersAction[ArgumentParser]") -> None:
    """Adds the subcommand. Its flags come from `legato_engine.settings`, which imports no torch."""
    from legato_engine import settings

    parser = subparsers.add_parser("worker", help="run one engine replica: prefill, decode or both")
    settings.add_flags(parser)
    parser.set_defaults(run=run)


def run(flags: Namespace) -> int:
    """Serves until the worker is stopped. Exit code 2: a setting or the model is not usable; stderr has the reason."""
    from legato_engine import main, settings
    from legato_engine.errors import EngineError
    from legato_protocol.settings.flags import SettingsError

    try:
        return main.run(settings.read(flags, os.environ), _resolve)
    except (EngineError, SettingsError) as error:
        print(f"legato worker: {error}", file=sys.stderr)
        return 2


def _resolve(model: str, progress: Callable[[str], None]) -> Path:
    from legato_cli.models.model import ModelUnavailable, resolve
    from legato_engine.errors import ModelNotFound

    try:
        return resolve(model, progress)
    except ModelUnavailable as error:
        raise ModelNotFound(str(error)) from error
