"""The `legato record` subcommand."""

import argparse
import asyncio
import sys
from contextlib import AbstractAsyncContextManager
from functools import partial

from legato_cli.recording import sources
from legato_cli.recording.recorder import SignalRecorder
from legato_cli.recording.recording_file import FILES, RecordingFile
from legato_cli.recording.sources import RoundSource
from legato_cli.services.asking import NAME_REQUIRED
from legato_cli.ui.target import NoTarget
from legato_operator.clock import SystemClock
from legato_protocol.settings import sizes

FAILED, BAD_INPUT = 1, 2


def run(args: argparse.Namespace) -> int:
    """Records until Ctrl-C, or for as long as asked."""
    if args.namespace and not args.service:
        return _refuse(NAME_REQUIRED, BAD_INPUT)
    try:
        file = RecordingFile(args.file, args.size)
    except FileExistsError:
        return _refuse(f"{args.file}, or one of its rotated files, exists (choose another name)", BAD_INPUT)
    except OSError as error:
        return _refuse(f"cannot write {args.file}: {error.strerror}", BAD_INPUT)
    try:
        asyncio.run(_record(args, file))
    except NoTarget as error:
        args.file.unlink()
        return _refuse(str(error), FAILED)
    finally:
        file.close()
    return 0


async def _record(args: argparse.Namespace, file: RecordingFile) -> None:
    say = partial(print, "legato record:", file=sys.stderr, flush=True)
    async with _source(args) as source:
        recorder = SignalRecorder(source, file, SystemClock(), say)
        say(f"writing to {args.file}, at most {sizes.text(args.size)} in {FILES} files; Ctrl-C ends it")
        try:
            await recorder.run(*([vars(args)["for"]] if vars(args)["for"] is not None else []))
        finally:
            if recorder.rounds:
                replay = " ".join(f"--signals {path}" for path in file.written)
                print(f"{recorder.rounds} rounds; replay them with: legato simulate -f MANIFEST {replay}", flush=True)


def _source(args: argparse.Namespace) -> AbstractAsyncContextManager[RoundSource]:
    if args.namespace:
        return sources.on_kubernetes(args.namespace, args.service)
    return sources.of_legato_up(args.service)


def _refuse(text: str, code: int) -> int:
    print(f"legato record: {text}", file=sys.stderr)
    return code
