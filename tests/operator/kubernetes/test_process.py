"""`legato operator` as a process: started as in its pod, it leads, and gives the Lease back when told to end."""

import asyncio
import contextlib
import os
import signal
import sys

import pytest

from legato_cli import main

IMAGES = ("--engine-image=engine:1", "--gateway-image=gateway:1")


async def test_process_reconciles_and_gives_the_lease_back(s, build, tmp_path):
    (tmp_path / "kubeconfig").write_text(s.api.kubeconfig())
    environment = os.environ | {"KUBECONFIG": str(tmp_path / "kubeconfig")}
    environment |= {"LEGATO_NAMESPACE": s.name, "LEGATO_POD_NAME": "pod-1"}
    command = (sys.executable, "-m", "legato_cli.main", "operator", *IMAGES, f"--namespace={s.name}")
    process = await asyncio.create_subprocess_exec(*command, "--http-port=0", env=environment)
    try:
        await s.serve(build())
        assert (await s.lease()).get("holderIdentity") == "pod-1"
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 60) == 0
        assert "holderIdentity" not in await s.lease()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--lease-namespace=X", "--lease-namespace"),
        ("", "--lease-namespace"),
        ("--lease-namespace=x --namespace=No_Name", "--namespace"),
        ("--lease-namespace=x --engine-image=", "--engine-image"),
        ("--lease-namespace=x --http-port=70000", "--http-port"),
        ("--lease-namespace=x --identity=-", "--identity"),
        ("--lease-namespace=x --token-role=r", "--service-account"),
        ("--lease-namespace=x --ignore-namespace=No_Name", "--ignore-namespace"),
        ("--lease-namespace=x --ignore-namespace=a --namespace=b", "--ignore-namespace"),
        ("--lease-namespace=x --gpu-resource=gpu", "--gpu-resource"),
        ("--lease-namespace=x --tracing-endpoint=collector:4318", "--tracing-endpoint"),
    ],
)
def test_wrong_setting_is_refused_by_its_name(flags, named, monkeypatch, capsys):
    monkeypatch.delenv("LEGATO_NAMESPACE", raising=False)
    try:
        code = main.main(["operator", *IMAGES, *flags.split()])
    except SystemExit as stopped:  # argparse refuses single flags
        code = stopped.code
    assert code == 2
    assert named in capsys.readouterr().err
