"""The command line of `legato chat`."""

import argparse

from legato_cli.services import options
from legato_protocol.sampling import limits as sampling_limits
from legato_protocol.settings import flags

HELP = "talk to a running service"
DESCRIPTION = (
    "Ctrl-C stops an answer, Ctrl-D ends the conversation. Without a terminal, all of standard input is one question."
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    text = flags.text("QUESTION")
    parser.add_argument(
        "question", nargs="?", type=text, metavar=text.metavar, help="ask only this question, then exit"
    )
    options.add_service(parser)
    flags.option(parser, "--system", kind=flags.text("TEXT"), help="system message")
    flags.option(parser, "--max-tokens", kind=flags.whole("TOKENS", 1, 1 << 24), help="longest answer, in tokens")
    least, most = sampling_limits.RANGES["temperature"].least, sampling_limits.RANGES["temperature"].most
    flags.option(parser, "--temperature", kind=flags.real("NUMBER", least, most), help="0 takes the likeliest token")


def run(args: argparse.Namespace) -> int:
    """Runs the chat. Exit code 1: the service is missing, or the only question got no answer."""
    from legato_cli.chat import terminal
    from legato_cli.ui import sources

    return terminal.run(sources.source(args.namespace, args.service), _parameters(args), args.system, args.question)


def _parameters(args: argparse.Namespace) -> dict[str, object]:
    given = {"max_completion_tokens": args.max_tokens, "temperature": args.temperature}
    return {name: value for name, value in given.items() if value is not None}
