"""`legato bench`: drives any OpenAI-compatible server and measures what its users feel."""

from legato_cli.bench.arguments import add_parser

__all__ = ["add_parser"]
