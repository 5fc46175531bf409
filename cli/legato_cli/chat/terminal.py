"""Questions from a person or a pipe, answers as they come. Ctrl-C stops an answer, and only that."""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager

import aiohttp

from legato_cli.chat.conversation import MAX_EVENT, ChatConversation, NoReply
from legato_cli.errors import ServiceUnavailable
from legato_cli.ui.target import TargetSource

FAILED = 1
PROMPT = "> "


def run(
    source: AbstractAsyncContextManager[TargetSource],
    parameters: Mapping[str, object],
    system: str | None,
    question: str | None,
) -> int:
    """Runs the conversation. Exit code 1: the only question has no answer.

    Raises ServiceUnavailable before the first question.
    """
    with asyncio.Runner() as runner, _opened(runner, source, parameters, system) as conversation:
        if question is None and sys.stdin.isatty():
            _talk(runner, conversation)
            return 0
        return _ask_once(runner, conversation, question or sys.stdin.read().strip())


@contextlib.contextmanager
def _opened(
    runner: asyncio.Runner,
    source: AbstractAsyncContextManager[TargetSource],
    parameters: Mapping[str, object],
    system: str | None,
) -> Iterator[ChatConversation]:
    """Keeps connections open from question to question; between questions, the event loop does not run."""
    stack = contextlib.AsyncExitStack()

    async def enter() -> ChatConversation:
        targets = await stack.enter_async_context(source)
        await targets.find()
        connector = aiohttp.TCPConnector(force_close=True)  # an idle connection ends unnoticed while the loop stands
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, read_bufsize=MAX_EVENT))
        return ChatConversation(targets, session, parameters, system)

    try:
        yield runner.run(enter())
    finally:
        runner.run(stack.aclose())


def _talk(runner: asyncio.Runner, conversation: ChatConversation) -> None:
    """Asks until Ctrl-D. An answer that fails or is stopped ends neither the program nor the conversation."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - input() edits lines with it

    print("Ctrl-C stops an answer, Ctrl-D ends.", file=sys.stderr)
    for question in _questions(input):
        try:
            runner.run(_answer(conversation, question))
        except KeyboardInterrupt:
            print("(stopped)", file=sys.stderr)
        except (NoReply, ServiceUnavailable) as error:
            print(f"legato chat: {error}", file=sys.stderr)


def _questions(read: Callable[[str], str]) -> Iterator[str]:
    """Yields lines that are not empty; Ctrl-C drops the line that is being typed."""
    while True:
        try:
            question = read(PROMPT).strip()
        except KeyboardInterrupt:
            print(file=sys.stderr)
            continue
        except EOFError:
            print(file=sys.stderr)
            return
        if question:
            yield question


def _ask_once(runner: asyncio.Runner, conversation: ChatConversation, question: str) -> int:
    if not question:
        print("legato chat: no question (give one as an argument, or on standard input)", file=sys.stderr)
        return FAILED
    try:
        runner.run(_answer(conversation, question))
    except (NoReply, ServiceUnavailable) as error:
        print(f"legato chat: {error}", file=sys.stderr)
        return FAILED
    return 0


async def _answer(conversation: ChatConversation, question: str) -> None:
    """Prints the answer as it arrives. Closing the stream ends its work immediately."""
    wrote = False
    async with contextlib.aclosing(conversation.ask(question)) as pieces:
        try:
            async for piece in pieces:
                print(piece, end="", flush=True)
                wrote = True
        finally:
            if wrote:
                print(flush=True)
