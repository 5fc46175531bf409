"""`legato doctor` tells what this machine offers, measured, and never fails over what is missing."""

import pytest
import torch

from legato_cli import doctor, fit, gpus, kernels, main, model
from legato_cli.gpus import Facts, Gpu
from legato_engine.backends.cuda.device import Interpreted
from legato_engine.errors import NoDevice
from legato_engine.runner import backends
from legato_operator.api import parsing


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


GPU_MANIFEST = """
apiVersion: serving.legato.dev/v1alpha1
kind: InferenceService
metadata: {name: mine}
spec:
  model: {source: {builtin: smollm2-135m-instruct}, maxLength: 4096}
  engine: {kvCacheMemory: Auto, dtype: DTYPE}
  prefill: {resources: {requests: {memory: 700Mi, nvidia.com/gpu: 1}}}
  decode: {resources: {requests: {memory: 700Mi, nvidia.com/gpu: 1}}}
"""
GIB = 1 << 30


def _gpu_lines(dtype: str, gpus: fit.Gpus | None) -> list[str]:
    service = parsing.parse(GPU_MANIFEST.replace("DTYPE", dtype))
    path = model.resolve("builtin:smollm2-135m-instruct", print)
    return list(fit.lines(service.spec, path, gpus))


@pytest.mark.parametrize(
    ("count", "said"), [(1, "of 10,240 MiB free on a GPU for each of 2 workers"), (2, "of 20,480 MiB free on a GPU")]
)
def test_pools_with_gpus_are_judged_by_the_gpus_memory_and_formats(count, said):
    """The host's 700 MiB do not bound them, and Float16 is computed by no processor."""
    lines = _gpu_lines("Float16", fit.Gpus(Interpreted(), 20 * GIB, count))
    assert len(lines) == 2
    for line in lines:
        assert line.endswith(said)
        assert "weights 257 MiB" in line  # two bytes a value


def test_too_little_memory_of_a_gpu_is_told():
    with pytest.raises(fit.DoesNotFit, match=r"^decode .* 500 MiB are available"):
        _gpu_lines("Float16", fit.Gpus(Interpreted(), 1000 << 20, 1))


def test_pools_with_gpus_are_judged_for_the_processor_where_there_is_none():
    with pytest.raises(fit.DoesNotFit, match="700 MiB are available"):
        _gpu_lines("Float32", None)
    service = parsing.parse(GPU_MANIFEST.replace("DTYPE", "Float32").replace("700Mi", "4Gi"))
    lines = list(fit.lines(service.spec, model.resolve("builtin:smollm2-135m-instruct", print), None))
    assert [line.split()[:4] for line in lines[::2]] == [
        [role, "requests", "a", "GPU;"] for role in ("decode", "prefill")
    ]
    assert all("fits: weights" in line for line in lines[1::2])


H200 = Gpu("NVIDIA H200", (9, 0), 132, 143_771 << 20, 227 << 10, dmabuf=True)
WITH_A_GPU = {"gpus": (H200,), "triton": "3.7.1"}


@pytest.fixture
def checks(monkeypatch):
    """What is asked about kernels, one of which does not compile."""
    found = []

    def problems(gpus, path, dtype, block_size, environ):
        found.append((tuple(gpus), path.name, dtype, block_size))
        return {"sm_90": "_silu_mul: why"}

    monkeypatch.setattr(kernels, "problems", problems)
    return found


BUILTIN_FILE = model.resolve("builtin:smollm2-135m-instruct", print).name


def test_kernels_of_the_builtin_model_are_told_where_there_is_a_gpu(checks, monkeypatch):
    monkeypatch.setattr(gpus, "find", lambda environ: Facts(**WITH_A_GPU))
    told = [line for line in doctor.gpus() if line.startswith("kernels ")]
    assert told == ["kernels        not all of builtin:smollm2-135m-instruct compile for sm_90: _silu_mul: why"]
    assert checks == [((H200,), BUILTIN_FILE, "Auto", 64)]


@pytest.mark.parametrize("without", [{"gpus": ()}, {"triton": None}, {"cannot_compile": "no gcc"}])
def test_nothing_is_compiled_where_nothing_could_be_launched(checks, monkeypatch, without):
    monkeypatch.setattr(gpus, "find", lambda environ: Facts(**WITH_A_GPU | without))
    assert not any(line.startswith("kernels ") for line in doctor.gpus())
    assert checks == []


def test_kernels_are_unknown_without_the_builtin_model(checks, monkeypatch):
    def resolve(name, progress):
        raise model.ModelUnavailable("no network")

    monkeypatch.setattr(gpus, "find", lambda environ: Facts(**WITH_A_GPU))
    monkeypatch.setattr(model, "resolve", resolve)
    assert [*doctor.gpus()][-1] == "kernels        unknown: no network"


@pytest.fixture
def with_a_gpu(monkeypatch):
    monkeypatch.setattr(doctor, "SECTIONS", ())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (80 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(backends, "gpu", lambda name: Interpreted())
    monkeypatch.setattr(gpus, "devices", lambda: (H200,))


@pytest.mark.parametrize(("on_failure", "code"), [("Stop", 1), ("Torch", 0)])
def test_a_manifest_s_kernels_that_do_not_compile_end_with_1_where_workers_would_stop(
    checks, with_a_gpu, tmp_path, capsys, on_failure, code
):
    file = tmp_path / "m.yaml"
    engine = f"dtype: Float16, blockSize: 32, onKernelFailure: {on_failure}"
    file.write_text(GPU_MANIFEST.replace("dtype: DTYPE", engine))
    assert main.main(["doctor", "-f", str(file)]) == code
    assert f"not all of {BUILTIN_FILE} compile for sm_90: _silu_mul: why" in capsys.readouterr().out
    assert checks == [((H200,), BUILTIN_FILE, "Float16", 32)]


def test_a_manifest_whose_kernels_compile_fits(with_a_gpu, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(kernels, "problems", lambda *_asked: {"sm_90": ""})
    file = tmp_path / "m.yaml"
    file.write_text(GPU_MANIFEST.replace("DTYPE", "Float16"))
    assert main.main(["doctor", "-f", str(file)]) == 0
    assert f"all of {BUILTIN_FILE} compile for sm_90" in capsys.readouterr().out


def test_a_manifest_without_gpus_needs_no_kernels(checks, with_a_gpu, tmp_path):
    file = tmp_path / "m.yaml"
    file.write_text(MANIFEST.replace("MEMORY", "4Gi").replace("LENGTH", "4096"))
    assert main.main(["doctor", "-f", str(file)]) == 0
    assert checks == []


def test_a_gpu_that_cannot_be_computed_on_is_told(monkeypatch):
    def gpu(name):
        raise NoDevice("compute capability 7.0")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(backends, "gpu", gpu)
    with pytest.raises(doctor.SomethingWrong, match=r"^dtype: Auto +unknown: compute capability 7.0"):
        [*doctor.formats()]


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
    monkeypatch.setattr(fit, "lines", lambda spec, path, gpus: iter(()))
    (tmp_path / "generation_config.json").write_text(given)
    manifest = MANIFEST.replace("builtin: smollm2-135m-instruct}", f'path: "{tmp_path}"}}, generationConfig: {switch}')
    file = tmp_path / "m.yaml"
    file.write_text(manifest.replace("MEMORY", "4Gi").replace("LENGTH", "4096"))
    assert main.main(["doctor", "-f", str(file)]) == code
    assert said in capsys.readouterr().out.partition("Sampling")[2]
