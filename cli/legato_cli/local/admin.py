"""The admin socket of a running `legato up`: one JSON line each way over a Unix socket in a folder of the user."""

import asyncio
import contextlib
import json
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

Answer = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]
TIMEOUT = 10.0  # seconds
LONGEST_ANSWER = 1 << 20


class NotRunning(Exception):
    """No `legato up` runs, or not the named one. The text has the remedy."""


class CannotListen(Exception):
    """Commands of other processes cannot be received. The text has the reason."""


def folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Returns the private folder of this user's sockets, and creates it if it is missing. Raises CannotListen."""
    base = environ.get("XDG_RUNTIME_DIR")
    path = Path(base) / "legato" if base else Path(tempfile.gettempdir()) / f"legato-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CannotListen(f"cannot create {path}: {error.strerror} (set XDG_RUNTIME_DIR to another folder)") from None
    if path.stat().st_uid != os.getuid():
        raise CannotListen(f"{path} belongs to another user (set XDG_RUNTIME_DIR to another folder)")
    return path


@contextlib.asynccontextmanager
async def listening(service: str, answer: Answer) -> AsyncIterator[None]:
    """Answers orders for a service. Raises CannotListen if another `legato up` serves one of this name."""
    path = folder() / f"{service}.sock"
    if _answers(path):
        raise CannotListen(f"service {service} is already running (stop it, or change metadata.name)")
    path.unlink(missing_ok=True)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            try:
                order = json.loads(await reader.readline())
            except ValueError:
                return
            writer.write(json.dumps(await answer(order)).encode() + b"\n")
            await writer.drain()

    try:
        server = await asyncio.start_unix_server(serve, path)
    except OSError as error:
        raise CannotListen(f"cannot listen on {path}: {error} (set XDG_RUNTIME_DIR to another folder)") from None
    path.chmod(0o600)
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)


def ask(service: str | None, order: Mapping[str, Any]) -> dict[str, Any]:
    """Sends an order to the named service, or to the only one that runs. Raises NotRunning, CannotListen, OSError."""
    path = _find(service)
    with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rb") as answers:
        connection.settimeout(TIMEOUT)
        connection.connect(str(path))
        connection.sendall(json.dumps(order).encode() + b"\n")
        line = answers.readline(LONGEST_ANSWER)
    if not line:
        raise NotRunning(f"service {path.stem} stopped before it answered")
    answer: dict[str, Any] = json.loads(line)
    return answer


def _find(service: str | None) -> Path:
    running = sorted(path for path in folder().glob("*.sock") if _answers(path))
    matches = [path for path in running if service in (None, path.stem)]
    if len(matches) == 1:
        return matches[0]
    names = ", ".join(path.stem for path in running)
    if matches:
        raise NotRunning(f"several services are running: {names} (choose one with --service)")
    if running:
        raise NotRunning(f"service {service} is not running (running: {names})")
    raise NotRunning("no service is running (start one with `legato up`)")


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(TIMEOUT)
        try:
            connection.connect(str(path))
        except OSError:
            return False
        return True
