"""`legato gateway`: the OpenAI-compatible gateway."""

import os
import sys
from argparse import Namespace

from legato_cli.errors import CannotRun
from legato_gateway import settings

HELP = "run a gateway: the OpenAI API over prefill and decode workers"
add_flags = settings.add_flags


def run(flags: Namespace) -> int:
    """Serves until it is stopped. Raises CannotRun and SettingsError."""
    from legato_cli.models.model import resolve_header

    read = settings.read(flags, os.environ)
    path = resolve_header(read.model, lambda line: print(f"legato gateway: {line}", file=sys.stderr))
    from legato_gateway import main
    from legato_gateway.generation_config import BadGenerationConfig
    from legato_gateway.tokenizer.tokens import TokenizeError

    try:
        return main.run(read, path)
    except (TokenizeError, BadGenerationConfig) as error:
        raise CannotRun(str(error)) from None
