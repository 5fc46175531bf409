"""The language check finds a planted fault of each kind."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import language  # noqa: E402 - a script, in no package


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("engine/a.py", '"""What it is."""\n', "engine: 1 of 1 docstrings open so"),
        ("engine/a.py", "x = 1  # told to peers\n", "'told' is a retired word"),
        ("engine/a.py", "told_at = 1\n", "'told' is a retired word"),
        ("engine/a.py", "found = 1\n", "a variable named 'found'"),
        ("engine/a.py", "turn = 1\n", "'turn' is a chat turn only"),
        ("engine/a.py", "class A: ...\nclass A: ...\n", "class A also in engine/a.py:2"),
        ("engine/a.py", "class A:\n def __init__(self, a, b, c, d, e, f, *, g): ...\n", "engine/a.py:2: 7 arguments"),
        ("docs/a.md", "Measured on 2026-01-01.\n", "docs/a.md:1: a date"),
        ("docs/a.md", "It tells why.\n", "docs/a.md:1: 'tells' is a retired word"),
        ("docs/a.md", "## What is in it\n", "docs/a.md:1: 'what is' is a retired word"),
        ("engine/README.md", "It tells why.\n", "engine/README.md:1: 'tells' is a retired word"),
        ("CHANGELOG.md", "It tells why.\n", "CHANGELOG.md:1: 'tells' is a retired word"),
        ("scripts/a.py", "x = 1  # told to peers\n", "'told' is a retired word"),
        ("engine/a.py", "x = 1  # Told to peers\n", "'told' is a retired word"),
    ],
)
def test_a_planted_fault_is_found(tmp_path, monkeypatch, capsys, file, text, fault):
    for path in ("README.md", "CHANGELOG.md", "SECURITY.md", file):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("")
    monkeypatch.setattr(language, "ROOT", tmp_path)
    assert language.main([]) == 0
    (tmp_path / file).write_text(text)
    assert language.main([]) == 1
    assert fault in capsys.readouterr().out
