"""`legato gateway`: the OpenAI-compatible gateway."""

import os
import sys
from argparse import Namespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import ArgumentParser, _SubParsersAction


def add_parser(subparsers: "_SubParsersAction[ArgumentParser]") -> None:
    """Adds the subcommand. Its flags come from `legato_gateway.settings`."""
    from legato_gateway import settings

    parser = subparsers.add_parser("gateway", help="run a gateway: the OpenAI API over prefill and decode workers")
    settings.add_flags(parser)
    parser.set_defaults(run=run)


def run(flags: Namespace) -> int:
    """Serves until it is stopped. 2: a setting or the model is not allowed, as said on stderr."""
    from legato_cli.models.model import ModelUnavailable, resolve_header
    from legato_gateway import settings
    from legato_protocol.settings.flags import SettingsError

    try:
        read = settings.read(flags, os.environ)
        path = resolve_header(read.model, lambda line: print(f"legato gateway: {line}", file=sys.stderr))
    except (SettingsError, ModelUnavailable) as error:
        return _refuse(error)
    from legato_gateway import main
    from legato_gateway.generation_config import BadGenerationConfig
    from legato_gateway.tokenizer.tokens import TokenizeError

    try:
        return main.run(read, path)
    except (SettingsError, TokenizeError, BadGenerationConfig) as error:
        return _refuse(error)


def _refuse(error: Exception) -> int:
    print(f"legato gateway: {error}", file=sys.stderr)
    return 2
