"""Flags of a worker that are more than a number."""

from argparse import ArgumentParser

import pytest

from legato_engine import settings
from legato_protocol.settings.flags import SettingsError

LEAST = ["--role", "decode", "--name", "d0", "--model", "m"]


def read(*flags: str, **environ: str) -> settings.WorkerSettings:
    parser = ArgumentParser()
    settings.add_flags(parser)
    return settings.read(parser.parse_args([*LEAST, *flags]), environ)


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        ("", "transfer_ports", None),
        ("--transfer-ports 7100-7163", "transfer_ports", (7100, 7163)),
        ("", "kv_cache_memory", 512 << 20),
        ("", "memory_share", None),
        ("", "max_batch", None),
        ("--max-batch Auto", "max_batch", None),
        ("--max-batch 4096", "max_batch", 4096),
        ("--max-length Auto", "max_length", None),
        ("--max-length 2", "max_length", 2),
        ("--kv-cache-memory Auto --memory-share 3", "kv_cache_memory", None),
        ("--kv-cache-memory Auto --memory-share 3", "memory_share", 3),
        ("", "checksum", True),
        ("--no-checksum", "checksum", False),
        ("", "step_limit", 120),
        ("--step-limit 90s", "step_limit", 90),
        ("", "slo_tpot", 0.1),
        ("--slo-tpot 50ms", "slo_tpot", 0.05),
        ("", "start_limit", 600),
        ("--start-limit 1h", "start_limit", 3600),
        ("", "output_reservation", "Expected"),
        ("--output-reservation Maximum", "output_reservation", "Maximum"),
        ("--dtype Float16 --device cuda", "dtype", "Float16"),
        ("--host localhost", "host", "localhost"),
        ("--transfer-host 192.0.2.2 --transport None", "transfer_host", "192.0.2.2"),
        ("--transfer-host 127.0.0.2", "transfer_host", "127.0.0.2"),
        ("", "plain_control", True),
        ("--internal-tls-mode Strict --internal-tls-folder tls --internal-tls-name s", "plain_control", False),
        ("--block-size 1024", "tokens_per_block", 1024),
        ("", "tensor", 1),
        ("--tensor 8", "tensor", 8),
    ],
)
def test_flags_and_defaults(flags: str, name: str, value: object) -> None:
    assert getattr(read(*flags.split()), name) == value


@pytest.mark.parametrize(("device", "block", "chunk"), [("cpu", 16, 256), ("cuda", 64, 2048)])
def test_blocks_and_chunks_hold_as_many_tokens_as_suit_the_device(device: str, block: int, chunk: int) -> None:
    for flags, expected in (
        ("", (block, chunk)),
        ("--block-size Auto --chunk-tokens Auto", (block, chunk)),
        ("--block-size 32 --chunk-tokens 64", (32, 64)),
    ):
        given = read("--device", device, *flags.split())
        assert (given.tokens_per_block, given.tokens_per_chunk) == expected


@pytest.mark.parametrize(
    ("flag", "allowed", "given"),
    [
        *(("--disk-kv-path", "any but /, without ..", folder) for folder in ("/", "//./", "..", "/kv/../a")),
        *(("--block-size", "a power of two from 1 to 1024, or Auto", n) for n in ("0", "3", "2048", "-16", "a")),
        *(("--chunk-tokens", "1 to 1048576, or Auto", n) for n in ("0", "1048577", "auto")),
        *(("--tensor", "1, 2, 4, 8", n) for n in ("0", "3", "16", "-2", "Auto")),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(
    flag: str, allowed: str, given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read(flag, given)
    kind = "folder" if flag == "--disk-kv-path" else "number"
    assert f"{flag}: not a valid {kind}: {given} ({allowed})" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("--internal-tls-mode Strict", "--internal-tls-mode: Strict needs --internal-tls-folder"),
        ("--internal-tls-folder tls", "--internal-tls-folder and --internal-tls-name: only allowed together"),
        ("--internal-tls-name s", "--internal-tls-folder and --internal-tls-name: only allowed together"),
        ("--dtype Float16", "--dtype: Float16 needs --device cuda"),
        ("--host 0.0.0.0", r"--host: 0\.0\.0\.0 is not a loopback address, and LEGATO_TOKEN"),
        ("--transfer-host 192.0.2.2", r"--transfer-host: 192\.0\.2\.2 is not a loopback address.*LEGATO_TOKEN"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(flags: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        read(*flags.split())


def test_a_token_allows_other_addresses() -> None:
    assert read("--transfer-host", "192.0.2.2", LEGATO_TOKEN="secret").transfer_host == "192.0.2.2"
