"""The plugin by which `scripts/test` runs tests in forks loses nothing that happens in one of them."""

import subprocess
import sys
from pathlib import Path

TESTS = """
import os, warnings, pytest

@pytest.fixture(scope="session", autouse=True)
def shared():
    yield
    with open("ended", "a") as file:
        file.write("once more\\n")

def test_passes(): pass
def test_fails(): print("what it printed"); os.system("echo what its child printed"); assert False
def test_warns(): warnings.warn("what it warned of")
def test_dies(): os._exit(3)
def test_after_it(): pass
@pytest.mark.skip
def test_skipped(): pass
"""
ENDS = {"passes": "PASSED", "fails": "FAILED", "warns": "PASSED", "dies": "FAILED", "after_it": "PASSED"}
ONCE = dict.fromkeys(ENDS, 1)


def run(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "forked_tests", "--processes", "2", "-rA", *arguments]
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {Path(__file__).with_name('support')}\n")
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


def test_each_test_is_reported_once_whatever_happens_to_its_process(tmp_path: Path) -> None:
    for name in ("test_a", "test_b"):
        (tmp_path / f"{name}.py").write_text(TESTS)
    printed = run(tmp_path)
    lines = [line.partition(" - ")[0] for line in printed.splitlines()]
    for name in ("test_a", "test_b"):
        assert {end: lines.count(f"{result} {name}.py::test_{end}") for end, result in ENDS.items()} == ONCE
        assert f"FAILED {name}.py::test_dies - the process of this test ended with 3" in printed
    for said in ("what it printed", "what its child printed", "Warning: what it warned of"):
        assert sum(line.endswith(said) for line in printed.splitlines()) == 2, said
    assert "2 skipped" in printed
    assert (tmp_path / "ended").read_text().count("once more") == 2  # processes that died did not tear down fixtures


def test_a_first_failure_ends_the_run_if_it_should(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_fails(): assert False\n" + "def test_after(): pass\n")
    assert "PASSED" not in (printed := run(tmp_path, "--exitfirst"))
    assert "stopping after 1 failures" in printed
