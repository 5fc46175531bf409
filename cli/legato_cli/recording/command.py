"""The `legato record` subcommand."""

import argparse
import asyncio
import contextlib
import sys
from contextlib import AbstractAsyncContextManager
from functools import partial

from legato_cli.errors import CannotRun, ServiceUnavailable
from legato_cli.recording import sources
from legato_cli.recording.recorder import SignalRecorder
from legato_cli.recording.recording_file import FILES, RecordingFile
from legato_cli.recording.sources import ReadRound
from legato_cli.services.asking import NAME_REQUIRED
from legato_operator.clock import SystemClock
from legato_protocol.settings import sizes


def run(args: argparse.Namespace) -> int:
    """Records until Ctrl-C, or for the duration of `--for`."""
    if args.namespace and not args.service:
        raise CannotRun(NAME_REQUIRED)
    try:
        file = RecordingFile(args.file, args.size)
    except FileExistsError:
        raise CannotRun(f"{args.file}, or one of its rotated files, exists (choose another name)") from None
    except OSError as error:
        raise CannotRun(f"cannot write {args.file}: {error.strerror}") from None
    try:
        asyncio.run(_record(args, file))
    except ServiceUnavailable:
        args.file.unlink()
        raise
    finally:
        file.close()
    return 0


async def _record(args: argparse.Namespace, file: RecordingFile) -> None:
    say = partial(print, "legato record:", file=sys.stderr, flush=True)
    async with _source(args) as read:
        recorder = SignalRecorder(read, file, SystemClock(), say)
        say(f"writing to {args.file}, at most {sizes.text(args.size)} in {FILES} files; Ctrl-C ends it")
        try:
            await recorder.run(*([vars(args)["for"]] if vars(args)["for"] is not None else []))
        finally:
            if recorder.rounds:
                replay = " ".join(f"--signals {path}" for path in file.written)
                print(f"{recorder.rounds} rounds; replay them with: legato simulate -f MANIFEST {replay}", flush=True)


def _source(args: argparse.Namespace) -> AbstractAsyncContextManager[ReadRound]:
    if args.namespace:
        return sources.on_kubernetes(args.namespace, args.service)
    return contextlib.nullcontext(partial(sources.from_legato_up, args.service))
