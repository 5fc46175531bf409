"""`legato chat` as a process: in a terminal and in pipes, in front of a gateway that answers as it is told."""

import asyncio
import contextlib
import json
import os
import pty
import sys

import pytest
from aiohttp import web

from legato_cli import admin, main
from legato_cli.ui.target import GatewayTarget, UITarget

LIMIT = 90  # seconds: a hang is a failure, a busy machine is none


class FakeGateway:
    """A control port. It repeats the last question, word by word; after `slow` it waits until the client is gone."""

    def __init__(self):
        self.asked = []
        self.gone = asyncio.Event()

    async def models(self, _request):
        return web.json_response({"data": [{"id": "smollm2"}]})

    async def answer(self, request):
        if request.headers.get("authorization") != "Bearer secret":
            return web.json_response({"error": {"message": "no token"}}, status=401)
        body = await request.json()
        self.asked.append(body)
        question = body["messages"][-1]["content"]
        if question == "refuse":
            return web.json_response({"error": {"message": "the context is full"}}, status=400)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": keep-alive\n\n")
        for word in question.split():
            await self._event(response, {"choices": [{"delta": {"content": f"{word} "}}]})
            if word == "slow":
                try:
                    await asyncio.Event().wait()
                finally:
                    self.gone.set()
            if word == "fail":
                await self._event(response, {"error": {"message": "the deadline is over"}})
            if word == "break":
                return response
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _event(self, response, event):
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")


@contextlib.asynccontextmanager
async def _service(tmp_path, monkeypatch):
    """What a `legato up` tells, with a gateway behind it; and the environment in which it is found."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    gateway, app = FakeGateway(), web.Application()
    app.router.add_get("/v1/models", gateway.models)
    app.router.add_post("/v1/chat/completions", gateway.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    target = UITarget((GatewayTarget("g0", f"127.0.0.1:{runner.addresses[0][1]}"),), "secret", {})

    async def answer(_order):
        return {"target": target.message()}

    try:
        async with asyncio.timeout(LIMIT), admin.listening("demo", answer):
            yield gateway
    finally:
        await runner.cleanup()


async def _piped(question, *arguments):
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "legato_cli.main", "chat", *arguments)
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        out, err = await process.communicate(question.encode())
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode, out.decode(), err.decode()


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
    """Where Ctrl-C is heard, also if these tests run in a shell's background, which ignores it."""
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


def test_a_conversation_keeps_its_history_and_ctrl_c_stops_only_the_answer(tmp_path, monkeypatch):
    async def test():
        async with _service(tmp_path, monkeypatch) as gateway, _at_terminal("--system", "Be brief") as person:
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
        said = [(message["role"], message["content"]) for message in gateway.asked[-1]["messages"]]
        assert said == [
            ("system", "Be brief"),
            ("user", "one two"),
            ("assistant", "one two "),
            ("user", "very slow"),
            ("assistant", "very slow "),
            ("user", "three"),
        ]

    asyncio.run(test())


def test_in_a_pipe_all_of_the_input_is_one_question(tmp_path, monkeypatch):
    async def test():
        async with _service(tmp_path, monkeypatch) as gateway:
            assert await _piped("first line\nsecond line\n", "--temperature", "0") == (
                0, "first line second line \n", ""
            )  # fmt: skip
            (asked,) = gateway.asked
            assert (asked["model"], asked["temperature"], asked["stream"]) == ("smollm2", 0, True)
            assert "max_completion_tokens" not in asked
            assert (await _piped("", "hello", "--max-tokens", "7"))[:2] == (0, "hello \n")
            assert gateway.asked[-1]["max_completion_tokens"] == 7

    asyncio.run(test())


@pytest.mark.parametrize(
    ("question", "out", "said"),
    [
        ("refuse", "", "the context is full"),
        ("please fail", "please fail \n", "the deadline is over"),
        ("please break", "please break \n", "the answer broke off"),
        ("", "", "no question (give one as an argument, or on standard input)"),
    ],
)
def test_in_a_pipe_an_answer_that_is_not_whole_ends_with_1(tmp_path, monkeypatch, question, out, said):
    async def test():
        async with _service(tmp_path, monkeypatch):
            assert await _piped(question) == (1, out, f"legato chat: {said}\n")

    asyncio.run(test())


def test_without_a_service_it_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert main.main(["chat", "hello"]) == 1
    assert capsys.readouterr().err == "legato chat: no service is running (start one with `legato up`)\n"
    assert main.main(["chat", "hello", "-n", "prod"]) == 1
    assert "--service is required" in capsys.readouterr().err
