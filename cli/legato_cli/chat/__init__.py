"""`legato chat`: talking to a running service in a terminal, or from a pipe."""

from legato_cli.chat.command import add_parser

__all__ = ["add_parser"]
