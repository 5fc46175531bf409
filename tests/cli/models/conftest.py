"""A hub of this machine, and judgements of models in it."""

import functools

import fake_hub
import huggingface_hub
import local_services
import pytest
import yaml

from legato_cli.machine import doctor


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The library reads HF_ENDPOINT when it is imported, so in this process it is given the address."""
    with fake_hub.serving() as served:
        for name, value in served.environ(tmp_path).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(huggingface_hub, "HfApi", functools.partial(huggingface_hub.HfApi, endpoint=served.url))
        yield served


@pytest.fixture
def judge(server, tmp_path, monkeypatch, legato):
    """Judges the memory of a manifest whose model has this source: exit code and output."""
    monkeypatch.setattr(doctor, "SECTIONS", ())
    pool, file = {"resources": {"limits": {"memory": "4Gi"}}}, tmp_path / "manifest.yaml"

    def judge(source):
        file.write_text(yaml.safe_dump(local_services.manifest(model={"source": source}, prefill=pool, decode=pool)))
        code, out, _ = legato("doctor", "-f", file)
        return code, out.partition("Deployment")[0]

    return judge
