"""`legato doctor` tells what this machine offers, measured, and never fails over what is missing."""

import pytest

from legato_cli import doctor, fit, main


def test_every_section_is_told(capsys):
    """With two real processes and real UCX for the hand-off section."""
    assert main.main(["doctor"]) == 0
    told = capsys.readouterr().out
    for title, _ in doctor.SECTIONS:
        assert title in told.splitlines()
    lines = {line.split()[0]: line for line in told.splitlines() if line.startswith("  ")}
    assert "usable; " in lines["TCP"]
    assert "GB/s" in lines["TCP"]
    assert "dtype: Auto" in told
    assert lines["Auto"].split()[1] in ("TCP,", "RDMA;", "RDMA,", "GPUDirect;")


MANIFEST = """
apiVersion: serving.legato.dev/v1alpha1
kind: InferenceService
metadata: {name: mine}
spec:
  model: {source: {builtin: smollm2-135m-instruct}, maxLength: LENGTH}
  engine: {kvCacheMemory: 256Mi}
  decode: {resources: {requests: {memory: MEMORY}}}
"""


@pytest.mark.parametrize(
    ("memory", "length", "code", "said"),
    [
        ("4Gi", 4096, 0, "KV cache 256 MiB"),
        ("700Mi", 4096, 1, "700 MiB are available"),
        ("4Gi", 9000, 1, "model.maxLength is 9000; the model allows 8192"),
    ],
)
def test_a_manifest_whose_workers_do_not_fit_ends_with_1(memory, length, code, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "SECTIONS", ())
    file = tmp_path / "m.yaml"
    file.write_text(MANIFEST.replace("MEMORY", memory).replace("LENGTH", str(length)))
    assert main.main(["doctor", "-f", str(file)]) == code
    told = capsys.readouterr().out
    assert said in told
    assert ("fits: weights" in told.split("decode")[-1]) == (code == 0)


def test_a_model_that_cannot_be_read_ends_with_1(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "SECTIONS", ())
    assert main.main(["doctor", str(tmp_path)]) == 1
    assert "config.json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "switch", "code", "said"),
    [
        ('{"temperature": 0.6, "top_k": 20}', "Model", 0, "temperature 0.6, top_k 20\n"),
        ('{"temperature": "hot"}', "None", 0, "neutral: model.generationConfig is None\n"),
        ('{"eos_token_id": "</s>"}', "None", 1, "generation_config.json: eos_token_id: not a valid token id: '</s>'"),
        ("{}", "Model", 0, "none\n"),
        ('{"temperature": "hot"}', "Model", 1, "generation_config.json: temperature: not a valid value: 'hot'"),
    ],
)
def test_the_model_s_defaults_for_sampling_are_told(given, switch, code, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "SECTIONS", ())
    monkeypatch.setattr(fit, "lines", lambda spec, path: iter(()))
    (tmp_path / "generation_config.json").write_text(given)
    manifest = MANIFEST.replace("builtin: smollm2-135m-instruct}", f'path: "{tmp_path}"}}, generationConfig: {switch}')
    file = tmp_path / "m.yaml"
    file.write_text(manifest.replace("MEMORY", "4Gi").replace("LENGTH", "4096"))
    assert main.main(["doctor", "-f", str(file)]) == code
    assert said in capsys.readouterr().out.partition("Sampling")[2]
