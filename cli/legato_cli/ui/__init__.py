"""`legato ui`: a page on this machine that shows a running service, with what its autoscaler decided."""

from legato_cli.ui.command import add_parser

__all__ = ["add_parser"]
