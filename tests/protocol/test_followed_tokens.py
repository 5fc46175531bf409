"""Tokens that a process shows, and accepts, while their files change."""

import os

import pytest

from legato_protocol.security.followed_tokens import RETENTION, SPREAD, PeerToken, ServiceTokens
from legato_protocol.security.service_tokens import token_id


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class Folder:
    """As a kubelet brings a Secret: a folder that `..data` points to, replaced as a whole."""

    def __init__(self, path):
        self.path = path
        self._count = 0

    def write(self, **files):
        self._count += 1
        fresh = self.path / f"..{self._count}"
        fresh.mkdir()
        for name, text in files.items():
            (fresh / name).write_bytes(text.encode())
        os.symlink(fresh.name, self.path / "..next")
        os.replace(self.path / "..next", self.path / "..data")

    def change(self, tokens, **files):
        self.write(**files)
        tokens.reload()


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def followed(folder, **files):
    folder.write(**files)
    clock = Clock()
    return ServiceTokens(folder=folder.path, clock=clock), clock


def test_without_a_token_and_a_folder_everybody_is_let_in():
    assert ServiceTokens().takes("")
    assert not ServiceTokens().missing


def test_one_token_is_asked_for():
    tokens = ServiceTokens("secret")
    shown = ("Bearer secret", "Bearer other", "secret", "", "Bearer sécret")
    assert [text for text in shown if tokens.takes(text)] == ["Bearer secret"]


def test_a_folder_without_a_token_lets_nobody_in_until_there_is_one(folder):
    tokens = ServiceTokens("of the environment", folder.path)
    assert tokens.missing
    assert not tokens.takes("")
    assert not tokens.takes("Bearer of the environment")
    assert "No such file" in tokens.problem
    folder.change(tokens, token="a\n")
    assert (tokens.known, tokens.problem, tokens.missing) == (("a",), "", False)


def test_files_that_nobody_swaps_are_read_where_they_lie(tmp_path):
    (tmp_path / "token").write_text("a")
    (tmp_path / "next").write_text("b")
    assert ServiceTokens(folder=tmp_path).known == ("a", "b")


EDITS = {
    "announced": [({"token": "a", "next": "b"}, ("a", "b")), ({"token": "b", "previous": "a"}, ("b", "a"))],
    "an edit that the operator turns into a rotation": [
        ({"token": "b"}, ("a", "b")),
        ({"token": "a", "next": "b"}, ("a", "b")),
        ({"token": "b", "previous": "a"}, ("b", "a")),
    ],
}


@pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS)
def test_a_token_is_taken_before_it_is_shown_and_the_previous_one_after(folder, edits):
    tokens, _ = followed(folder, token="a")
    for files, known in edits:
        folder.change(tokens, **files)
        assert (tokens.known, tokens.ids) == (known, tuple(map(token_id, known)))
    folder.change(tokens, token="b")
    assert tokens.known == ("b",), "one that was let go of in order is not taken for longer"


def test_a_token_that_came_without_notice_is_shown_once_it_has_spread_and_the_old_one_is_taken(folder):
    tokens, clock = followed(folder, token="a")
    folder.change(tokens, token="x")
    assert tokens.known == ("a", "x")
    clock.now += SPREAD - 1
    assert tokens.known == ("a", "x")
    clock.now += 1
    assert tokens.known == ("x", "a")
    clock.now += RETENTION - SPREAD
    assert tokens.known == ("x",)


@pytest.mark.parametrize("broken", [{}, {"next": "b"}, {"token": ""}, {"token": "two words"}, {"token": "é"}])
def test_what_is_no_token_changes_nothing_and_is_told(folder, broken):
    tokens, _ = followed(folder, token="a")
    folder.change(tokens, **broken)
    assert tokens.known == ("a",)
    assert tokens.problem
    folder.change(tokens, token="a")
    assert tokens.problem == ""


def test_another_token_that_is_unusable_is_left_out(folder):
    tokens, _ = followed(folder, token="a", next="", previous="no\x00ne")
    assert tokens.known == ("a",)


def test_a_refused_token_is_not_shown_before_the_others_were(folder):
    tokens, _ = followed(folder, token="b", previous="a")
    shown = PeerToken(tokens)
    assert shown.get() == "b"
    assert shown.note_refused("b")
    assert shown.get() == "a"
    assert not shown.note_refused("a"), "all were refused"
    assert shown.get() == "b"
    shown.note_refused("b")
    shown.note_accepted()
    assert shown.get() == "b", "a worker that took the previous one has the newest, the next time"
