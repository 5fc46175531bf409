"""Seals and proofs: whoever has no token makes none, and workers of two releases make the same."""

import pytest

from legato_engine.transfer.connections.seals import Token, prove, seal, unseal

MESSAGE = b"a message"


@pytest.mark.parametrize(
    ("token", "digest", "proof"),
    [
        ("a secret", "91f39c0ea4791b4a", "cd829f708c026dde60fd60fc12547f730e715dd52b5125f26b29375234c6e2c2"),
        ("s" * 200, "aed0951a520776cf", "def8e343af1fc5c2ef2b7b0d84dbdb76ab1f2bcf4a7cc739f4e5778acdd405fb"),
        ("ключ", "8930672679e103cf", "6c2d46f6807bb2ed0e444c149d571d5e6e678d7f7e54f5cc2a9e2b9bca02b011"),
    ],
)
def test_they_never_change(token, digest, proof):
    """A worker of the last release would refuse others, and each hand-off during an upgrade fail."""
    assert seal(MESSAGE, Token.from_text(token)) == bytes.fromhex(digest) + MESSAGE
    assert prove(token, "d0", "e1") == bytes.fromhex(proof)


def test_a_sealed_message_is_opened_by_its_token_alone_and_undamaged():
    own, message = Token.from_text("a secret"), seal(MESSAGE, Token.from_text("a secret"))
    assert unseal(message, own) == MESSAGE
    assert unseal(seal(b"", own), own) == b""
    assert unseal(message, Token.from_text("a secret ")) is None
    assert unseal(seal(MESSAGE, Token.from_text("s" * 100 + "a")), Token.from_text("s" * 100 + "b")) is None
    for at in range(len(message)):
        assert unseal(message[:at] + bytes([message[at] ^ 1]) + message[at + 1 :], own) is None
        assert unseal(message[:at], own) is None
    assert unseal(message + b"\0", own) is None


def test_a_proof_is_of_one_worker_and_one_epoch():
    """One that was heard serves nobody else, not even one whose name takes a part of the epoch."""
    said = [("d0", "e1"), ("d0", "e2"), ("d1", "e1"), ("d0e", "1"), ("d0:", "e1"), ("d0", ":e1"), ("", "d0e1")]
    assert len({prove("a secret", *each) for each in said}) == len(said)
    assert prove("a secret", "d0", "e1") != prove("a secret ", "d0", "e1")
