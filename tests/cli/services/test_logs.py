"""`legato logs` shows every line once, in order, of one worker or of all, however late it is asked for."""

import io

import pytest
from local_services import answered, operations

from legato_cli import main
from legato_cli.services import log_lines, logs
from legato_cli.services.log_lines import LogLines
from legato_operator.local.store import Store


def _lines(*texts, pod="decode-0", kept=1 << 20):
    lines = LogLines(kept)
    for text in texts:
        lines.add(pod, text)
    return lines


def _printed(lines, worker=None, tail=None):
    """Prints of a command that ends; the pages come as a `legato up` gives them."""
    out = io.StringIO()
    logs.follow(lambda order: log_lines.answer(lines, order), worker, tail, False, out)
    return out.getvalue().splitlines()


def test_every_line_comes_once_in_order_and_whole_over_many_pages():
    texts = [f"{'x' * 100} {number}" for number in range(5000)] + ["x" * (log_lines.PAGE_BYTES + 1), "end"]
    lines = _lines(*texts)
    assert lines.page(0, None, None)["more"]
    assert _printed(lines) == [f"decode-0 | {text}" for text in texts]


def test_the_oldest_lines_go_and_the_size_of_the_others_is_bounded():
    kept = _printed(_lines(*(f"line {number}" for number in range(1000)), kept=1000))
    assert kept[-1] == "decode-0 | line 999"
    assert 0 < sum(len(line) - len(" | ") for line in kept) <= 1000


@pytest.mark.parametrize(("tail", "expected"), [(None, "abcd"), (3, "bcd"), (0, ""), (100, "abcd")])
def test_a_tail_is_of_the_worker_asked_for(tail, expected):
    lines = _lines(*"abcd")
    for number in range(50):
        lines.add("gateway-0", f"{number}")
    assert _printed(lines, "decode-0", tail) == [f"decode-0 | {text}" for text in expected]


def test_following_shows_new_lines_and_nothing_twice():
    lines, out = _lines("a", "b"), io.StringIO()

    def sleep(_seconds):
        if len(out.getvalue().splitlines()) >= 4:
            raise KeyboardInterrupt
        lines.add("prefill-0", "another")

    with pytest.raises(KeyboardInterrupt):
        logs.follow(lambda order: log_lines.answer(lines, order), None, 1, True, out, sleep)
    assert out.getvalue().splitlines() == ["decode-0 | b", *["prefill-0 | another"] * 3]


def test_a_worker_that_wrote_nothing_is_named():
    error = "decode-9 has written nothing (there are lines of: decode-0)"
    assert log_lines.answer(_lines("a"), {"pod": "decode-9"}) == {"error": error}


async def test_a_running_service_is_asked(legato):
    running = operations(Store(lambda: "now"))
    for number in range(3000):
        running.written.add("demo-decode-0", f"{'é' * 50}{number}")
    code, out, _ = await answered(legato, running.answer, "logs", "demo-decode-0", "--tail", 2000)
    assert (code, out.splitlines()[-1]) == (0, f"demo-decode-0 | {'é' * 50}2999")


def test_on_kubernetes_kubectl_shows_them(kubectl, tmp_path, monkeypatch, capfd):
    kubectl("import sys; print(sys.argv[1:])")
    assert main.main(["logs", "-n", "prod", "--service", "chat", "-f", "--tail", "5"]) == 0
    out = capfd.readouterr().out
    assert "'--selector', 'serving.legato.dev/service=chat,serving.legato.dev/role'" in out
    assert "'--tail=5', '--follow'" in out
    one = ["logs", "chat-decode-0", "-n", "prod"]
    assert main.main(one) == 0
    out = capfd.readouterr().out
    assert ("'pod/chat-decode-0'" in out, "--selector" in out) == (True, False)
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert main.main(one) == 1
    assert "kubectl cannot be started" in capfd.readouterr().err
