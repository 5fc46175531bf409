"""`legato chat`: as a process in a terminal, and in pipes, in front of a fake gateway."""

import asyncio
import contextlib
import io
import os
import pty
import sys

import pytest
from answering_server import serving
from fake_gateway import FakeGateway

from legato_cli.local import admin
from legato_cli.ui.target import ControlTarget, UITarget

pytestmark = pytest.mark.timeout(90)  # a hang is a failure, a busy machine is not


@pytest.fixture
async def gateway():
    fake = FakeGateway()
    async with serving(fake.answer) as address:
        target = UITarget((ControlTarget("g0", address),), "secret", {})

        async def answer(_order):
            return {"target": target.message()}

        async with admin.listening("demo", answer):
            yield fake


@pytest.fixture
def piped(gateway, legato, monkeypatch):

    async def run(question, *arguments):
        monkeypatch.setattr(sys, "stdin", io.StringIO(question))
        return await asyncio.to_thread(legato, "chat", *arguments)

    return run


class Person:
    """At a terminal, in which the command is the foreground process."""

    def __init__(self, process, terminal):
        self.process = process
        self._terminal = terminal
        self.seen = ""
        os.set_blocking(terminal, False)
        asyncio.get_running_loop().add_reader(terminal, self._read)
        self._news = asyncio.Event()

    def _read(self):
        with contextlib.suppress(OSError):  # the other end is closed
            self.seen += os.read(self._terminal, 1 << 16).decode(errors="replace")
        self._news.set()

    def press(self, keys):
        self.seen = ""
        os.write(self._terminal, keys.encode())

    async def until(self, text):
        while text not in self.seen:
            await self._news.wait()
            self._news.clear()


@contextlib.asynccontextmanager
async def _at_terminal(*arguments):
    """Runs it where Ctrl-C is heard, also if these tests run in a shell's background, which ignores it."""
    mine, theirs = pty.openpty()
    start = "import fcntl, signal, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    start += "signal.signal(signal.SIGINT, signal.default_int_handler); "
    program = start + "from legato_cli.main import main; raise SystemExit(main(['chat', *__import__('sys').argv[1:]]))"
    command = (sys.executable, "-c", program, *arguments)
    process = await asyncio.create_subprocess_exec(
        *command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    person = Person(process, mine)
    try:
        yield person
    finally:
        asyncio.get_running_loop().remove_reader(mine)
        os.close(mine)
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_conversation_keeps_its_history_and_ctrl_c_stops_only_the_answer(gateway):
    async with _at_terminal("--system", "Be brief") as person:
        await person.until("> ")
        person.press("one two\n")
        await person.until("one two \r\n> ")
        person.press("very slow\n")
        await person.until("very slow\r\nvery slow ")  # what was typed, then the answer
        person.press("\x03")
        await person.until("(stopped)")
        await gateway.gone.wait()
        person.press("refuse\n")
        await person.until("legato chat: the context is full")
        person.press("three\n")
        await person.until("three \r\n> ")
        person.press("\x04")
        assert await person.process.wait() == 0
    assert [(message["role"], message["content"]) for message in gateway.bodies[-1]["messages"]] == [
        ("system", "Be brief"),
        ("user", "one two"),
        ("assistant", "one two "),
        ("user", "very slow"),
        ("assistant", "very slow "),
        ("user", "three"),
    ]


async def test_in_a_pipe_all_of_the_input_is_one_question(gateway, piped):
    assert await piped("first line\nsecond line\n", "--temperature", 0) == (0, "first line second line \n", "")
    (asked,) = gateway.bodies
    assert (asked["model"], asked["temperature"], asked["stream"]) == ("smollm2", 0, True)
    assert "max_completion_tokens" not in asked
    assert await piped("", "hello", "--max-tokens", 7) == (0, "hello \n", "")
    assert gateway.bodies[-1]["max_completion_tokens"] == 7


@pytest.mark.parametrize(
    ("question", "out", "said"),
    [
        ("refuse", "", "the context is full"),
        ("please fail", "please fail \n", "the deadline is over"),
        ("please break", "please break \n", "the answer broke off"),
        ("", "", "no question (give one as an argument, or on standard input)"),
    ],
)
async def test_in_a_pipe_an_answer_that_is_not_whole_ends_with_1(question, out, said, piped):
    assert await piped(question) == (1, out, f"legato chat: {said}\n")
