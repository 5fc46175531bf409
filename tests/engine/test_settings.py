"""Flags of a worker that are more than a number."""

from argparse import ArgumentParser

import pytest

from legato_engine import settings
from legato_protocol.flags import SettingsError

LEAST = ["--role", "decode", "--name", "d0", "--model", "m"]


def read(*flags: str, **environ: str) -> settings.WorkerSettings:
    parser = ArgumentParser()
    settings.add_flags(parser)
    return settings.read(parser.parse_args([*LEAST, *flags]), environ)


def test_transfer_ports_are_a_range_or_any() -> None:
    assert read().transfer_ports is None
    assert read("--transfer-ports", "7100-7163").transfer_ports == (7100, 7163)


@pytest.mark.parametrize("given", ["0", "3", "2048", "-16", "a"])
def test_a_block_size_is_a_power_of_two(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read("--block-size", given)
    said = f"--block-size: not a valid number: {given} (a power of two from 1 to 1024, or Auto)"
    assert said in capsys.readouterr().err
    assert read("--block-size", "1024").tokens_per_block == 1024


@pytest.mark.parametrize(("device", "size"), [("cpu", 16), ("cuda", 64)])
def test_a_block_holds_as_many_tokens_as_suit_the_device(device: str, size: int) -> None:
    assert read("--device", device).tokens_per_block == size
    assert read("--device", device, "--block-size", "Auto").tokens_per_block == size
    assert read("--device", device, "--block-size", "32").tokens_per_block == 32


@pytest.mark.parametrize("given", ["0", "1048577", "auto"])
def test_a_chunk_is_a_number_of_tokens(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read("--chunk-tokens", given)
    said = f"--chunk-tokens: not a valid number: {given} (1 to 1048576, or Auto)"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("device", "tokens"), [("cpu", 256), ("cuda", 2048)])
def test_a_chunk_has_as_many_tokens_as_suit_the_device(device: str, tokens: int) -> None:
    assert read("--device", device).tokens_per_chunk == tokens
    assert read("--device", device, "--chunk-tokens", "Auto").tokens_per_chunk == tokens
    assert read("--device", device, "--chunk-tokens", "64").tokens_per_chunk == 64


def test_strict_internal_tls_needs_files() -> None:
    with pytest.raises(SettingsError, match="--internal-tls-mode: Strict needs --internal-tls-folder"):
        read("--internal-tls-mode", "Strict")
    strict = read("--internal-tls-mode", "Strict", "--internal-tls-folder", "tls", "--internal-tls-name", "s")
    assert not strict.plain_control
    assert read().plain_control
    for alone in (("--internal-tls-folder", "tls"), ("--internal-tls-name", "s")):
        with pytest.raises(SettingsError, match="--internal-tls-folder and --internal-tls-name: only allowed together"):
            read(*alone)


def test_the_kv_cache_is_of_a_size_or_takes_what_is_free() -> None:
    assert (read().kv_cache_memory, read().memory_share) == (512 << 20, 1)
    assert read("--kv-cache-memory", "Auto", "--memory-share", "3").kv_cache_memory is None
    assert read("--kv-cache-memory", "Auto", "--memory-share", "3").memory_share == 3


def test_checksums_are_verified_unless_told_otherwise() -> None:
    assert (read().checksum, read("--no-checksum").checksum) == (True, False)


def test_half_precision_needs_a_gpu() -> None:
    with pytest.raises(SettingsError, match="--dtype: Float16 needs --device cuda"):
        read("--dtype", "Float16")
    assert read("--dtype", "Float16", "--device", "cuda").dtype == "Float16"


def test_without_a_token_the_control_port_stays_on_the_loopback() -> None:
    with pytest.raises(SettingsError, match=r"--host: 0\.0\.0\.0 is not a loopback address, and LEGATO_TOKEN"):
        read("--host", "0.0.0.0")
    assert read("--host", "localhost").host == "localhost"


def test_limits_are_durations() -> None:
    assert read().step_limit == 120
    assert read("--step-limit", "90s").step_limit == 90
    assert (read().slo_tpot, read("--slo-tpot", "50ms").slo_tpot) == (0.1, 0.05)
    assert (read().start_limit, read("--start-limit", "1h").start_limit) == (600, 3600)


def test_without_a_token_hand_offs_stay_on_the_loopback() -> None:
    with pytest.raises(SettingsError, match=r"--transfer-host: 192\.0\.2\.2 is not a loopback address.*LEGATO_TOKEN"):
        read("--transfer-host", "192.0.2.2")
    assert read("--transfer-host", "192.0.2.2", LEGATO_TOKEN="secret").transfer_host == "192.0.2.2"
    assert read("--transfer-host", "192.0.2.2", "--transport", "None").transfer_host == "192.0.2.2"
    assert read("--transfer-host", "127.0.0.2").transfer_host == "127.0.0.2"


def test_room_for_output_is_that_expected_unless_told_otherwise() -> None:
    assert read().output_reservation == "Expected"
    assert read("--output-reservation", "Maximum").output_reservation == "Maximum"
