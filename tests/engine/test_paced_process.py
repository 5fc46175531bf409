"""Real workers that are paced: processes, streams and UCX as ever, and nothing that computes."""

import asyncio
from pathlib import Path

import certificates
from worker_process import LONG, PROMPT, generate, hand_over, start, until

from legato_engine.runner.paced import token_at

PROFILE = """{"source": "a test", "kvTokens": 4096, "startSeconds": 0, "step":
{"perStep": 0.004, "perRow": 1e-4, "perContext": 1e-8, "perToken": 1e-5, "perPair": 1e-9}}"""
VOCABULARY = 49_152


def test_a_sequence_goes_from_one_paced_worker_to_another_and_on_to_a_third(tmp_path: Path) -> None:
    """Two of them have internal TLS, as while a service is given it: they use it, and the third is not left out."""
    profile = tmp_path / "profile.json"
    profile.write_text(PROFILE)
    names = ("p0", "d0", "d1")
    for name in (*names, "tls"):
        (tmp_path / name).mkdir()
    certificates.make(tmp_path / "made", names="subjectAltName=DNS:s").install(tmp_path / "tls")
    tls = ("--internal-tls-folder", str(tmp_path / "tls"), "--internal-tls-name", "s", "--control-tls-port", "0")
    flags = ("--transport", "TCP", "--runner", "paced", "--profile", str(profile))
    workers = [start(tmp_path / name, "--name", name, *flags, *(tls if name != "d1" else ())) for name in names]
    try:
        for process in workers:
            until(lambda process=process: process.ready)
        alone, travelled = asyncio.run(hand_over(*workers))
        connections = ('{what="tls_peers"} 1.0', '{what="plain_peers"} 1.0')
        until(lambda: all(each in workers[1].get("health", "/metrics")[1] for each in connections))
        maps = Path(f"/proc/{workers[0].core()}/maps").read_text()
    finally:
        for process in workers:
            process.popen.kill()
            process.popen.wait()
    params = generate("r", LONG).sequence.params
    assert alone == [token_at(params, 0, len(PROMPT) + index, VOCABULARY) for index in range(LONG)]
    assert travelled == alone
    assert "libtorch" not in maps
    assert "llvmlite" not in maps
