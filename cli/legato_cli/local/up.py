"""`legato up`: serves a manifest on this machine. This module checks it before any process starts."""

import argparse
import contextlib
import errno
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from legato_cli.errors import CannotRun
from legato_protocol import names
from legato_protocol.settings import flags

BAD_INPUT = 2
HOST = "127.0.0.1"
BACKLOG = 2048
QUICKSTART = Path(__file__).with_name("quickstart.yaml")
HELP = "serve a manifest, or a model, on this machine"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "model",
        nargs="?",
        type=flags.text("MODEL"),
        metavar="MODEL",
        help="serve this model without a manifest: a GGUF file, a folder, OWNER/NAME[:FILE][@COMMIT] of the Hugging "
        "Face hub, where FILE is a GGUF file or its tag such as Q4_K_M, or a built-in model's name",
    )
    which.add_argument(
        "-f",
        "--file",
        type=flags.FILE,
        metavar="FILE",
        help="the manifest (default: a small example)",
    )
    parser.add_argument("--print", action="store_true", help="only print the manifest")
    flags.option(
        parser,
        "--port",
        kind=flags.PORT_OR_FREE,
        default=names.GATEWAY_PORT,
        help="port of the gateway; 0 takes a free one",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="show all log lines of workers and gateways")


def run(args: argparse.Namespace) -> int:
    """Serves until Ctrl-C. Raises CannotRun and SettingsError; exit code 2: the manifest cannot be used."""
    from legato_cli.local import serving
    from legato_cli.models import model
    from legato_operator.errors import ManifestError
    from legato_operator.manifests.common import model_argument
    from legato_protocol.process import open_files

    try:
        open_files.raise_limit()
        with _manifest_file(args) as file:
            manifest = serving.read_manifest(file)
            if args.print:
                print(file.read_text(encoding="utf-8"), end="")
                return 0
            with _listen(args.port) as listener:
                model.resolve(model_argument(manifest.service), _say)
                return serving.serve(file, manifest, listener, args.verbose)
    except ManifestError as error:
        for path, message in error.problems:
            print(f"{args.file}: {path}: {message}" if path else f"{args.file}: {message}", file=sys.stderr)
    except serving.CannotServe as error:
        raise CannotRun(str(error)) from None
    return BAD_INPUT


@contextlib.contextmanager
def _manifest_file(args: argparse.Namespace) -> Iterator[Path]:
    """Yields the manifest's file; for a model, a temporary one. Raises ModelUnavailable."""
    if args.model is None:
        args.file = args.file or QUICKSTART
        yield args.file
        return
    import yaml

    from legato_cli.local import model_manifest

    made = model_manifest.of(args.model, _say)
    with tempfile.TemporaryDirectory(prefix="legato-") as folder:
        args.file = Path(folder) / f"{made['metadata']['name']}.yaml"
        args.file.write_text(yaml.safe_dump(made, sort_keys=False, allow_unicode=True), encoding="utf-8")
        yield args.file


def _say(text: str) -> None:
    """Prints to standard error, because the output of `--print` is only the manifest."""
    print(f"legato: {text}", file=sys.stderr, flush=True)


def _listen(port: int) -> socket.socket:
    """Returns a listening socket at `port`, or at a free one for 0. Raises CannotRun.

    It is opened once and inherited by every gateway: connections wait in its queue while one takes over from another.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise CannotRun(
            f"port {port} is in use (stop what listens there, or choose another port with --port)"
            if error.errno == errno.EADDRINUSE
            else f"cannot listen on port {port}: {error.strerror} (choose another port with --port)"
        ) from None
    return listener
