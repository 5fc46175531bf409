"""`legato gateway`: the OpenAI-compatible gateway."""

import os
import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from legato_cli.errors import CannotRun

if TYPE_CHECKING:
    from argparse import ArgumentParser, _SubParsersAction


def add_parser(subparsers: "_SubParsersAction[ArgumentParser]") -> None:
    """Adds the subcommand. Its flags come from `legato_gateway.settings`."""
    from legato_gateway import settings

    parser = subparsers.add_parser("gateway", help="run a gateway: the OpenAI API over prefill and decode workers")
    settings.add_flags(parser)
    parser.set_defaults(run=run)


def run(flags: Namespace) -> int:
    """Serves until it is stopped. Raises CannotRun and SettingsError."""
    from legato_cli.models.model import resolve_header
    from legato_gateway import settings

    read = settings.read(flags, os.environ)
    path = resolve_header(read.model, lambda line: print(f"legato gateway: {line}", file=sys.stderr))
    from legato_gateway import main
    from legato_gateway.generation_config import BadGenerationConfig
    from legato_gateway.tokenizer.tokens import TokenizeError

    try:
        return main.run(read, path)
    except (TokenizeError, BadGenerationConfig) as error:
        raise CannotRun(str(error)) from None
