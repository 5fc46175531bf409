"""What `legato up` writes on a terminal, and what into a file."""

import io

from legato_cli.local.terminal import Terminal


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_file_gets_lines_alone() -> None:
    out, err = io.StringIO(), io.StringIO()
    terminal = Terminal(out, err)
    terminal.say("a")
    terminal.update("loading 1%")
    terminal.log("worker: b\n")
    terminal.say("c")
    assert (out.getvalue(), err.getvalue()) == ("a\nc\n", "worker: b\n")


def test_a_terminal_rewrites_its_last_line() -> None:
    out = Screen()
    terminal = Terminal(out, out)
    terminal.update("loading 1%")
    terminal.update("loading 1%")
    terminal.update("loading 2%")
    assert out.getvalue() == "\r\x1b[Kloading 1%\r\x1b[Kloading 2%"


def test_lines_do_not_run_into_the_one_that_is_rewritten() -> None:
    for write in (Terminal.say, Terminal.log):
        out = Screen()
        terminal = Terminal(out, out)
        terminal.update("loading")
        write(terminal, "ready")
        write(terminal, "ready")
        assert out.getvalue().startswith("\r\x1b[Kloading\r\x1b[Kready")
        assert out.getvalue().count("\x1b[K") == 2


def test_a_rewritten_line_is_no_longer_than_the_terminal(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    out = Screen()
    Terminal(out, out).update("x" * 100)
    assert out.getvalue() == "\r\x1b[K" + "x" * 19
