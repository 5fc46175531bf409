"""The commands that ask a service, with a user's kubeconfig, against a real API server and the operator."""

import asyncio
import json

import pytest

from legato_cli import main

SERVICE = {
    "apiVersion": "serving.legato.dev/v1alpha1",
    "kind": "InferenceService",
    "spec": {"model": {"source": {"builtin": "smollm2-135m-instruct"}}},
}


@pytest.fixture
def legato(controlled, tmp_path, monkeypatch, capsys):
    """Runs the command as a user of this cluster does; gives its exit code, output and errors."""
    config = tmp_path / "kubeconfig"
    config.write_text(controlled.kubeconfig())
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(config))

    async def run(*words):
        code = await asyncio.to_thread(main.main, words)
        return code, *capsys.readouterr()

    return run


async def test_a_service_on_kubernetes_is_shown_and_scaled(s, operator, legato):
    await s.make(SERVICE)
    await s.wait(s.ready)
    mine = ("--namespace", s.name, "--service", "demo")
    code, told, _ = await legato("status", *mine)
    assert code == 0
    assert any(line.startswith("Ready") and "AllReady" in line for line in told.splitlines())
    (worker,) = await s.pods("decode")
    assert any(line.split()[:3] == [worker, "True", "0"] for line in told.splitlines())

    async def described():
        code, told, _ = await legato("describe", "--output", "json", *mine)
        assert code == 0
        return json.loads(told)

    found = await described()
    assert found["url"] == f"http://demo.{s.name}.svc/v1"
    assert {pod["pool"] for pod in found["pods"]} == {"prefill", "decode", "gateway"}
    await s.wait(lambda: _tells_ready(described))

    code, told, _ = await legato("scale", "decode", "2", *mine)
    assert (code, told) == (0, "demo-decode: 2 workers desired; the autoscaler is paused for 30m\n")
    pool = await s.cluster.get(s.ref("demo-decode", "WorkerPool"))
    assert pool["spec"]["replicas"] == 2
    await s.wait(lambda: _workers(s), 2)
    code, _, said = await legato("scale", "decode", "9", *mine)
    assert (code, "not a valid number of decode workers: 9" in said) == (1, True)


async def test_another_token_is_asked_for_and_comes(s, operator, legato):
    """Once for each request, and what other commands wrote stays."""
    await s.make(SERVICE)
    await s.wait(s.ready)
    mine = ("--namespace", s.name, "--service", "demo")
    assert (await legato("scale", "decode", "1", *mine))[0] == 0
    seen = []
    for _ in range(2):
        code, told, _ = await legato("rotate-token", *mine)
        assert (code, told.startswith("demo: another token was asked for")) == (0, True)
        annotations = (await s.cluster.get(s.ref()))["metadata"]["annotations"]
        assert "serving.legato.dev/scaling-paused-until" in annotations
        seen.append(annotations["serving.legato.dev/rotate-token"])
    assert len(set(seen)) == 2
    await s.wait(lambda: _has_next(s))


async def _has_next(space):
    return "next" in (await space.cluster.get(space.ref("demo-token", "Secret")))["data"]


async def _tells_ready(described):
    """Events come after the status."""
    return any(event["message"] == "Ready is True" for event in (await described())["events"])


async def test_what_cannot_be_asked_is_told_in_a_line(s, legato):
    code, _, said = await legato("status", "-n", s.name, "--service", "other")
    expected = f"legato status: there is no InferenceService other in namespace {s.name}\n"
    assert (code, said) == (1, expected)
    code, _, said = await legato("rotate-token", "-n", s.name, "--service", "other")
    assert (code, said) == (1, expected.replace("status", "rotate-token"))
    code, _, said = await legato("scale", "decode", "1", "-n", s.name)
    assert (code, said) == (1, "legato scale: --service is required with --namespace\n")


async def _workers(space):
    return len(await space.pods("decode"))
