"""`legato profile`: writes a trace of the next steps of a running worker."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from legato_cli.errors import CannotRun, ServiceUnavailable
from legato_cli.services import options
from legato_protocol.settings import durations, flags, values
from legato_protocol.wire.step_trace import LONGEST_WAIT, MOST_STEPS, TRACE_PATH, StepTraceRequest

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    import aiohttp

    from legato_cli.ui.target import WorkerSource

ANSWER_TIME = 120.0  # seconds to write and send a trace, after its steps
STEPS, WAIT = 50, 60.0
HELP = "write a trace of the next steps of a running worker"
DESCRIPTION = "Records with torch's profiler. Perfetto (https://ui.perfetto.dev) and chrome://tracing show the trace."


def _wait(text: str) -> float:
    seconds = durations.parse(text)
    if seconds > LONGEST_WAIT:
        raise values.invalid("duration", text, f"1ms to {durations.text(LONGEST_WAIT)}")
    return seconds


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    name = flags.kubernetes_name("WORKER")
    parser.add_argument("worker", nargs="?", type=name, metavar="WORKER", help="the only one if not given")
    options.add_service(parser)
    steps = flags.whole("STEPS", 1, MOST_STEPS)
    flags.option(parser, "--steps", kind=steps, default=STEPS, help="number of steps to record")
    wait = flags.ValueKind("DURATION", _wait, durations.text)
    flags.option(parser, "--timeout", kind=wait, default=WAIT, help="give up if they are not computed within this time")
    flags.option(parser, "--file", kind=flags.FILE, help="a new file; WORKER.trace.json.gz if not given")


def run(args: argparse.Namespace) -> int:
    """Writes the trace. Raises ServiceUnavailable if the worker records none, and CannotRun for an unusable file."""
    import asyncio

    from legato_cli.ui import sources

    request = StepTraceRequest(args.steps, args.timeout)
    path = asyncio.run(record(sources.source(args.namespace, args.service), args.worker, request, args.file))
    print(f"wrote {request.steps} steps to {path}; open it with https://ui.perfetto.dev")
    return 0


async def record(
    source: "AbstractAsyncContextManager[WorkerSource]", name: str | None, request: StepTraceRequest, file: Path | None
) -> Path:
    """Returns the path of the trace. Raises ServiceUnavailable and CannotRun."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=request.timeout + ANSWER_TIME)
    async with source as workers, aiohttp.ClientSession(timeout=timeout) as session:
        worker, token = await workers.find_worker(name)
        path = file or Path(f"{worker.name}.trace.json.gz")
        with _new_file(path) as out:
            print(f"legato profile: waiting for {request.steps} steps of {worker.name}", file=sys.stderr, flush=True)
            body, headers = {"steps": request.steps, "timeout": request.timeout}, {"authorization": f"Bearer {token}"}
            try:
                async with session.post(
                    f"{worker.url}{TRACE_PATH}", json=body, headers=headers, **worker.trust
                ) as answer:
                    if answer.status != 200:
                        raise ServiceUnavailable(f"{worker.name}: {await _reason(answer)}")
                    out.write(await answer.read())
            except (aiohttp.ClientError, TimeoutError) as error:
                reason = str(error) or type(error).__name__
                raise ServiceUnavailable(f"worker {worker.name} does not answer: {reason}") from None
    return path


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """A file that is removed if the work in this context fails. Raises CannotRun if it exists or cannot be written."""
    try:
        with path.open("xb") as out:
            try:
                yield out
            except BaseException:
                path.unlink()
                raise
    except FileExistsError:
        raise CannotRun(f"{path} exists (choose another file with --file)") from None
    except OSError as error:
        raise CannotRun(f"cannot write {path}: {error.strerror}") from None


async def _reason(answer: "aiohttp.ClientResponse") -> str:
    import aiohttp

    try:
        return str((await answer.json())["error"])
    except (aiohttp.ClientError, ValueError, KeyError):
        return f"status {answer.status} (is the worker of the same version?)"
