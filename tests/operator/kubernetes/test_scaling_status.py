"""What the autoscaler tells survives the API server as it was told: the CRD knows every field of it."""

import asyncio

from known_signals import arriving, decoder, prefiller, spec

from legato_cli import main
from legato_operator.autoscaler import record
from legato_operator.autoscaler.decide import decide
from legato_operator.autoscaler.signals import Signals
from legato_operator.cluster import Ref


def _scaling():
    known = Signals((prefiller(queue_tokens=10**6), decoder(running=9, blocks=None)), arriving(600, 2000))
    made = decide(known, {}, spec(largest=3), {"prefill": 1, "decode": 1}, 0.0).pools
    pools = {name: record.of(each, "2026-12-01T09:00:00Z") for name, each in made.items()}
    records = [{"pool": name, **told} for name, told in pools.items()]
    return {"pools": pools, "records": records, "pausedUntil": "2026-12-01T10:00:00Z"}


async def test_no_field_of_a_decision_is_pruned_and_legato_explains_it(space, build, tmp_path, monkeypatch, capsys):
    async with space() as s:
        await s.make(build())
        ref = Ref("InferenceService", s.name, "demo")
        await s.cluster.patch_status(ref, {"scaling": _scaling()})
        assert (await s.cluster.get(ref))["status"]["scaling"] == _scaling()
        kubeconfig = tmp_path / "config"
        kubeconfig.write_text(s.api.kubeconfig())
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
        command = ["explain", "scaling", "--namespace", s.name, "--service", "demo"]
        assert await asyncio.to_thread(main.main, command) == 0
        missing = ["explain", "scaling", "--namespace", s.name, "--service", "other"]
        assert await asyncio.to_thread(main.main, missing) == 1
    printed = capsys.readouterr()
    assert "paused until 2026-12-01T10:00:00Z" in printed.out
    assert "other" in printed.err
