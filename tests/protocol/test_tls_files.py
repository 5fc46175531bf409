"""Internal TLS follows its files, whatever they come to hold."""

import asyncio
from pathlib import Path

import certificates
import pytest

from legato_protocol import names
from legato_protocol.followed_files import InvalidFile
from legato_protocol.tls_files import InternalTLS, client_context

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> certificates.TLSFiles:
    return certificates.make(tmp_path_factory.mktemp("tls") / "made")


async def until(condition: object) -> None:
    async with asyncio.timeout(20):
        while not condition():  # type: ignore[operator]  # noqa: ASYNC110 - of a file
            await asyncio.sleep(0.001)


async def test_comments_beside_the_authority_may_have_any_bytes(files: certificates.TLSFiles, tmp_path: Path) -> None:
    files.install(tmp_path)
    authority = tmp_path / names.TLS_AUTHORITY
    authority.write_bytes("# Autorit\u00e9 de la soci\u00e9t\u00e9\n".encode() + authority.read_bytes() + b"\xff\n")
    assert len(InternalTLS(tmp_path).value.client.get_ca_certs()) == 1


async def test_an_authority_that_cannot_be_read_is_told_and_the_next_is_taken(
    files: certificates.TLSFiles, tmp_path: Path
) -> None:
    files.install(tmp_path)
    authority = tmp_path / names.TLS_AUTHORITY
    good = authority.read_bytes()
    followed = InternalTLS(tmp_path, interval=0.001)
    following = asyncio.create_task(followed.follow(lambda _level, _line: None))
    for wrong in (b"\xe9\xff", good.replace(b"\nM", b"\n\xe9", 1)):
        before = followed.value
        authority.write_bytes(wrong)
        await until(lambda: following.done() or followed.problem)
        assert str(authority) in followed.problem
        assert followed.value is before
        authority.write_bytes(good)
        await until(lambda: following.done() or not followed.problem)
        assert not following.done()
        assert followed.value is not before
    following.cancel()


def test_other_letters_than_those_of_pem_are_refused() -> None:
    with pytest.raises(InvalidFile, match="no certificates in PEM: they have bytes that are not ASCII"):
        client_context("caf\u00e9")
