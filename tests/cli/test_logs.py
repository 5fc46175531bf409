"""`legato logs` shows every line once, in order, of one worker or of all, whoever asks how late."""

import io
import sys

import pytest
from local_services import answered, operations

from legato_cli import logs, main
from legato_cli.services import log_lines
from legato_cli.services.log_lines import LogLines
from legato_operator.local.logs import Logs
from legato_operator.local.store import Store

KUBECTL = f"""#!{sys.executable}
import sys
print(sys.argv[1:])
"""


def _lines(count, pod="decode-0", kept=1 << 20, text="line"):
    lines = LogLines(kept)
    for number in range(count):
        lines.add(pod, f"{text} {number}")
    return lines


def _printed(lines, worker=None, tail=None):
    """What a command prints that ends; the pages come as a `legato up` gives them."""
    out = io.StringIO()
    logs.follow(lambda order: log_lines.told(lines, order), worker, tail, False, out)
    return out.getvalue().splitlines()


def test_every_line_comes_once_and_in_order_over_many_pages():
    lines = _lines(5000, text="x" * 100)
    assert lines.page(0, None, None)["more"]
    assert _printed(lines) == [f"decode-0 | {'x' * 100} {number}" for number in range(5000)]


def test_the_oldest_lines_go_and_what_is_kept_is_bounded():
    kept = _printed(_lines(1000, kept=1000))
    assert kept[-1] == "decode-0 | line 999"
    assert 0 < sum(len(line) - len(" | ") for line in kept) <= 1000


@pytest.mark.parametrize(("tail", "expected"), [(None, 4), (3, 3), (0, 0), (100, 4)])
def test_a_tail_is_of_the_worker_asked_for(tail, expected):
    lines = _lines(4)
    for number in range(50):
        lines.add("gateway-0", f"{number}")
    assert _printed(lines, "decode-0", tail) == [f"decode-0 | line {n}" for n in range(4 - expected, 4)]


def test_who_follows_gets_what_comes_and_nothing_twice():
    lines, out = _lines(2), io.StringIO()

    def sleep(_seconds):
        if len(out.getvalue().splitlines()) >= 4:
            raise KeyboardInterrupt
        lines.add("prefill-0", "another")

    with pytest.raises(KeyboardInterrupt):
        logs.follow(lambda order: log_lines.told(lines, order), None, 1, True, out, sleep)
    assert out.getvalue().splitlines() == ["decode-0 | line 1", *["prefill-0 | another"] * 3]


def test_a_line_longer_than_a_page_is_shown_whole():
    lines = LogLines()
    lines.add("decode-0", "x" * (log_lines.PAGE_BYTES + 1))
    lines.add("decode-0", "end")
    assert _printed(lines)[1] == "decode-0 | end"


def test_a_worker_that_wrote_nothing_is_named():
    assert log_lines.told(_lines(1), {"pod": "decode-9"}) == {
        "error": "decode-9 has written nothing (there are lines of: decode-0)"
    }


def test_lines_hidden_from_the_terminal_are_kept():
    shown, lines = [], LogLines()
    written = Logs(shown.append, hidden=("INFO ",), keep=lines.add)
    written.line("decode-0", "INFO started")
    written.line("decode-0", "WARNING slow")
    assert shown == ["decode-0 | WARNING slow\n"]
    assert _printed(lines) == ["decode-0 | INFO started", "decode-0 | WARNING slow"]


@pytest.mark.anyio
async def test_a_running_service_is_asked(legato):
    running = operations(Store(lambda: "now"))
    for number in range(3000):
        running.written.add("demo-decode-0", f"{'é' * 50}{number}")
    code, out, _ = await answered(legato, running.answer, "logs", "demo-decode-0", "--tail", 2000)
    assert (code, out.splitlines()[-1]) == (0, f"demo-decode-0 | {'é' * 50}2999")


def test_on_kubernetes_kubectl_shows_them(tmp_path, monkeypatch, capfd):
    program = tmp_path / "kubectl"
    program.write_text(KUBECTL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert main.main(["logs", "-n", "prod", "--service", "chat", "-f", "--tail", "5"]) == 0
    out = capfd.readouterr().out
    assert "'--selector', 'serving.legato.dev/service=chat,serving.legato.dev/role'" in out
    assert "'--tail=5', '--follow'" in out
    assert main.main(["logs", "chat-decode-0", "-n", "prod"]) == 0
    out = capfd.readouterr().out
    assert "'pod/chat-decode-0'" in out
    assert "--selector" not in out
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert main.main(["logs", "chat-decode-0", "-n", "prod"]) == 1
    assert "kubectl cannot be started" in capfd.readouterr().err
