"""The commands that ask a service, with a user's kubeconfig, against a real API server and the operator."""

import asyncio
import json

import pytest
from known_signals import arriving, decoder, prefiller, spec

from legato_cli import main
from legato_operator.autoscaler import record
from legato_operator.autoscaler.decide import decide
from legato_operator.autoscaler.signals import Signals


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


async def test_a_service_on_kubernetes_is_shown_scaled_and_given_another_token(s, operator, build, legato):
    """Each command leaves the others' requests as they are."""
    await s.serve(build())
    mine = ("--namespace", s.name, "--service", "demo")
    code, out, _ = await legato("status", *mine)
    assert code == 0
    assert any(line.startswith("Ready") and "AllReady" in line for line in out.splitlines())
    (worker,) = await s.pods("decode")
    assert any(line.split()[:3] == [worker, "True", "0"] for line in out.splitlines())

    async def described():
        code, out, _ = await legato("describe", "--output", "json", *mine)
        assert code == 0
        return json.loads(out)

    async def has_event():  # after the status
        return any(event["message"] == "Ready is True" for event in (await described())["events"])

    found = await described()
    assert found["url"] == f"http://demo.{s.name}.svc/v1"
    assert {pod["pool"] for pod in found["pods"]} == {"prefill", "decode", "gateway"}
    await s.wait(has_event)

    said = "demo-decode: 2 workers desired; the autoscaler is paused for 30m\n"
    assert await legato("scale", "decode", "2", *mine) == (0, said, "")
    assert (await s.cluster.get(s.ref("demo-decode", "WorkerPool")))["spec"]["replicas"] == 2
    await s.wait(lambda: s.exists("Pod", "demo-decode-1"))
    code, _, err = await legato("scale", "decode", "9", *mine)
    assert (code, "not a valid number of decode workers: 9" in err) == (1, True)

    requests = set()
    for _ in range(2):
        code, out, _ = await legato("rotate-token", *mine)
        assert (code, out.startswith("demo: another token was asked for")) == (0, True)
        annotations = (await s.cluster.get(s.ref()))["metadata"]["annotations"]
        assert "serving.legato.dev/scaling-paused-until" in annotations
        requests.add(annotations["serving.legato.dev/rotate-token"])
    assert len(requests) == 2

    async def has_next():
        return "next" in await s.secret()

    await s.wait(has_next)


def _scaling():
    known = Signals((prefiller(queue_tokens=10**6), decoder(running=9, blocks=None)), arriving(600, 2000))
    made = decide(known, {}, spec(largest=3), {"prefill": 1, "decode": 1}, 0.0).pools
    pools = {name: record.entry(each, "2026-12-01T09:00:00Z") for name, each in made.items()}
    records = [{"pool": name, **each} for name, each in pools.items()]
    return {"pools": pools, "records": records, "pausedUntil": "2026-12-01T10:00:00Z"}


async def test_no_field_of_a_decision_is_pruned_and_legato_explains_it(s, build, legato):
    """The CRD knows every field of the autoscaler's status."""
    await s.make(build())
    await s.cluster.patch_status(s.ref(), {"scaling": _scaling()})
    assert (await s.cluster.get(s.ref()))["status"]["scaling"] == _scaling()
    code, out, _ = await legato("explain", "scaling", "--namespace", s.name, "--service", "demo")
    assert (code, "paused until 2026-12-01T10:00:00Z" in out) == (0, True)
