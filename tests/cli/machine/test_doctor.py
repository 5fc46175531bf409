"""`legato doctor` reports what this machine offers, measured, and never fails over what is missing."""

import re

import checklist_page
import model_outlines
import pytest
import quantized_folders
import tiny_llama
import torch
import wordy_model
import yaml
from local_services import BUILTIN, manifest

from legato_cli.checklist import items
from legato_cli.machine import doctor, fit, gpus, kernels
from legato_cli.machine.gpus import Facts, Gpu
from legato_cli.models import hub_outline, model
from legato_cli.models.hub_content import HubUnreachable
from legato_engine.backends.cuda.device import Interpreted
from legato_engine.errors import NoDevice
from legato_engine.runner import backends, sizing
from legato_engine.settings import CHUNK_TOKENS
from legato_engine.transfer.ucx import transports
from legato_operator.api import parsing

GIB = 1 << 30
H200 = Gpu("NVIDIA H200", (9, 0), 132, 143_771 << 20, 227 << 10, dmabuf=True)
WITH_A_GPU = {"gpus": (H200,), "triton": "3.7.1"}
BUILTIN_FILE = model.resolve(f"builtin:{BUILTIN}", print).name


def test_every_section_is_printed(legato, monkeypatch):
    """With two real processes and real UCX for the hand-off section, over TCP."""
    lacking = transports.available_transports() | {"SharedMemory": ["it is not tried"]}
    monkeypatch.setattr(transports, "available_transports", lambda: lacking)
    monkeypatch.setattr(gpus, "find", lambda environ: Facts())  # the facts of this machine are in test_gpus
    code, out, _ = legato("doctor")
    assert code == 0
    assert {title for title, _ in doctor.SECTIONS} <= set(out.splitlines())
    lines = {line.split()[0]: line for line in out.splitlines() if line.startswith("  ")}
    assert "usable; " in lines["TCP"]
    assert "GB/s" in lines["TCP"]
    assert "dtype: Auto" in out
    assert "Within a node" in out
    assert lines["Auto"].split()[1] in ("TCP,", "RDMA;", "RDMA,", "GPUDirect;")


def _service(memory="4Gi", length=4096, source=None, **model):
    return manifest(
        model={"source": source or {"builtin": BUILTIN}, "maxLength": length, **model},
        engine={"kvCacheMemory": "256Mi"},
        decode={"resources": {"requests": {"memory": memory}}},
    )


def _with_gpus(memory="700Mi", **engine):
    pool = {"resources": {"requests": {"memory": memory, "nvidia.com/gpu": 1}}}
    model = {"source": {"builtin": BUILTIN}, "maxLength": 4096}
    return manifest(model=model, engine={"kvCacheMemory": "Auto", **engine}, prefill=pool, decode=pool)


@pytest.fixture
def judged(tmp_path, monkeypatch, legato):

    def run(item):
        monkeypatch.setattr(doctor, "SECTIONS", ())
        file = tmp_path / "m.yaml"
        file.write_text(yaml.safe_dump(item))
        return legato("doctor", "-f", file)[:2]

    return run


@pytest.mark.parametrize(
    ("memory", "length", "code", "said"),
    [
        ("4Gi", 4096, 0, "KV cache 256 MiB"),
        (
            "4Gi",
            4096,
            0,
            "64 sequences of at most 4,096 tokens (the model allows 8,192; 22 of 512 tokens fit together)",
        ),
        ("700Mi", 4096, 1, "700 MiB are available"),
        ("4Gi", 9000, 1, "model.maxLength is 9000; the model allows 8192"),
        ("4Gi", 4096, 0, "degrees        parallelism.tensor: 1\n"),
    ],
)
def test_a_manifest_whose_workers_do_not_fit_ends_with_1(memory, length, code, said, judged):
    ended, out = judged(_service(memory, length))
    assert ended == code
    assert said in out
    assert ("fits: weights" in out.split("  decode  ")[-1]) == (code == 0)


def test_a_degree_that_does_not_divide_the_model_is_refused(judged):
    code, out = judged(manifest(prefill={"parallelism": {"tensor": 4}}))
    unfit = "9 attention heads, 3 KV heads cannot be divided among 4 ranks; degrees that fit: 1"
    assert (code, f"  prefill        prefill.parallelism.tensor: {unfit}" in out) == (1, True)


def test_pools_of_degrees_with_other_formats_are_refused(tmp_path, judged):
    """Kernels need multiples of 32: a rank of two has 48 of 96."""
    tiny_llama.write(tmp_path, intermediate_size=96, num_attention_heads=2, num_key_value_heads=2)
    decode = {"parallelism": {"tensor": 2}, "resources": {"requests": {"memory": "4Gi"}}}
    code, out = judged(manifest(model={"source": {"path": str(tmp_path)}}, decode=decode))
    unfit = "2 ranks compute in the formats 'float32', prefill workers in '[a-z0-9-]+', and cannot hand KV over"
    assert code == 1
    assert re.search(rf"decode.parallelism.tensor: {unfit}; degrees that fit: 1\n", out)


def test_degrees_divide_groups_of_codes_that_a_gpu_multiplies(tmp_path):
    """Four ranks would have 64 inputs each of a projection, of which 128 share a scale."""
    quantized_folders.write(tmp_path, quantized_folders.KINDS["awq"])
    ranks = {"resources": {"limits": {"nvidia.com/gpu": 4}}, "parallelism": {"tensor": 4}}
    spec = parsing.read_mapping(manifest(engine={"dtype": "Float16"}, prefill=ranks, decode=ranks)).spec
    there = fit.Gpus(Interpreted(), 80 * GIB, 4)
    assert fit.degrees(spec, tmp_path, there) == "parallelism.tensor: 1, 2"
    refused = (
        r"parallelism.tensor: .*o_proj.* 4 ranks would have 64 of 256 .* of 128 is needed; degrees that fit: 1, 2$"
    )
    with pytest.raises(fit.DoesNotFit, match=refused):
        next(fit.lines(spec, tmp_path, there))


def test_ranks_on_cpus_are_processes_with_memory_of_their_own(tmp_path):
    """Each also has the hidden states of a step, six of which a layer needs."""
    path = model_outlines.write(tmp_path / "qwen", "qwen3-8b")
    decode = {"resources": {"requests": {"memory": "32Gi"}}}
    lines = [
        next(fit.lines(parsing.read_mapping(manifest(decode=decode | {"parallelism": {"tensor": n}})).spec, path, None))
        for n in (1, 4)
    ]
    workspaces = [int(re.search("about ([0-9,]+) MiB", line)[1].replace(",", "")) for line in lines]
    least = 3 * (sizing.PROCESS + 6 * CHUNK_TOKENS["cpu"] * 4096 * 4) >> 20
    assert least < workspaces[1] - workspaces[0] < 1.2 * least


@pytest.mark.parametrize(
    ("name", "free", "count", "degree", "said"),
    [
        ("llama-3.1-8b", 12, 1, 1, "or a smaller model; it fits with decode.parallelism.tensor: 2"),
        ("llama-3.1-8b", 3.2, 1, 1, "or a smaller model; it fits with decode.parallelism.tensor: 4"),
        ("llama-3.1-8b", 20, 2, 2, "fits: weights 2,837 MiB"),
        ("llama-3.1-8b", 20, 2, 2, "of 20,480 MiB free on 2 GPUs for each of 2 workers"),
        ("llama-3.1-8b", 20, 4, 2, "of 40,960 MiB free on 2 GPUs"),
        ("qwen2.5-7b", 80, 8, 8, "28 attention heads cannot be divided among 8 ranks; degrees that fit: 1, 2, 4"),
    ],
)
def test_ranks_divide_a_model_among_gpus(name, free, count, degree, said, tmp_path):
    pool = {"resources": {"limits": {"nvidia.com/gpu": degree}}, "parallelism": {"tensor": degree}}
    engine = {"kvCacheMemory": "Auto", "dtype": "Float16"}
    spec = parsing.read_mapping(manifest(engine=engine, prefill=pool, decode=pool)).spec
    there = fit.Gpus(Interpreted(), int(free * GIB), count)
    try:
        line = next(fit.lines(spec, model_outlines.write(tmp_path / name, name), there))
    except fit.DoesNotFit as error:
        line = str(error)
    assert said in line


@pytest.mark.parametrize(
    ("draft", "code", "said"),
    [
        ({"builtin": BUILTIN}, 0, "MiB of them of the draft model), workspace"),
        ({"path": str(wordy_model.path())}, 1, "token 3 is '<repo_name>' there and '</arg_value>' here"),
        ({"path": "/none"}, 1, "engine.speculation.model: model '/none': no such file or folder"),
    ],
)
def test_a_draft_model_takes_memory_of_decode_workers_and_must_fit(draft, code, said, judged):
    speculation = {"method": "Draft", "model": draft}
    ended, out = judged(manifest(engine={"speculation": speculation}))
    assert (ended, said in out) == (code, True), out


def test_the_formats_of_a_manifest_are_printed_instead_of_the_builtin_model_s(tmp_path, monkeypatch, legato):
    monkeypatch.setattr(doctor, "SECTIONS", (("Formats", doctor.formats),))
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(manifest(engine={"dtype": "Float32", "kvCacheDtype": "FP8"})))
    code, out, _ = legato("doctor", "-f", tmp_path / "m.yaml")
    line = next(line for line in out.splitlines() if line.startswith("  formats "))
    assert (code, "dtype: Auto" in out, "KV in float8_e4m3fn" in line) == (0, False, True)


def test_a_model_that_is_quantized_already_cannot_be_rounded(judged):
    code, out = judged(manifest(model={"source": {"builtin": BUILTIN}}, engine={"quantization": "Int8"}))
    assert (code, "engine.quantization is Int8, but its weights are quantized already: GGUF" in out) == (1, True)


@pytest.mark.parametrize(
    ("pools", "cores", "on_gpu", "threads"),
    [
        ({}, 2, False, 4),
        ({"scaling": {"prefill": {"max": 0}}}, 2, False, 0),
        ({role: {"resources": {"requests": {"cpu": 1}}} for role in ("prefill", "decode")}, 2, False, 0),
        ({"prefill": {"resources": {"requests": {"cpu": 8}}}}, 4, False, 8),
        ({"decode": {"parallelism": {"tensor": 2}}, "scaling": {"prefill": {"max": 0}}}, 4, False, 0),
        ({"decode": {"parallelism": {"tensor": 2}}, "scaling": {"prefill": {"max": 0}}}, 1, False, 2),
        ({"decode": {"resources": {"limits": {"nvidia.com/gpu": 1}}}}, 4, True, 0),
    ],
)
def test_pools_that_share_cores_are_named(pools, cores, on_gpu, threads):
    spec = parsing.read_mapping(manifest(**pools)).spec
    words = f"cores {cores} for {threads} compute threads: under `legato up`, steps take time slices".split()
    assert [line.split() for line in fit.sharing(spec, cores, on_gpu)] == ([words] if threads else [])


def _gpu_lines(there, dtype="Float16", **given):
    service = parsing.read_mapping(_with_gpus(dtype=dtype, **given))
    return list(fit.lines(service.spec, model.resolve(f"builtin:{BUILTIN}", print), there))


@pytest.mark.parametrize(
    ("count", "said"), [(1, "of 10,240 MiB free on a GPU for each of 2 workers"), (2, "of 20,480 MiB free on a GPU")]
)
def test_pools_with_gpus_are_judged_by_the_gpus_memory_and_formats(count, said):
    """The host's 700 MiB do not bound them, and Float16 is computed by no processor. Linear layers have 5 bits a value,
    and the embedding 16."""
    lines = _gpu_lines(fit.Gpus(Interpreted(), 20 * GIB, count))
    assert [(line.endswith(said), "weights 118 MiB" in line) for line in lines] == [(True, True)] * 2


def test_sequences_are_no_longer_than_hand_offs_between_gpus_have_room_for_on_the_host(monkeypatch):
    monkeypatch.setattr(fit.memory, "available", lambda: GIB // 8)
    service = parsing.read_mapping(
        _with_gpus() | {"spec": _with_gpus()["spec"] | {"model": {"source": {"builtin": BUILTIN}}}}
    )
    lines = list(
        fit.lines(service.spec, model.resolve(f"builtin:{BUILTIN}", print), fit.Gpus(Interpreted(), 20 * GIB, 1))
    )
    assert ["at most 704 tokens (the model allows 8,192)" in line for line in lines] == [True, True], lines


@pytest.mark.parametrize(
    ("there", "dtype", "message"),
    [
        (fit.Gpus(Interpreted(), 1000 << 20, 1), "Float16", r"^decode .* 500 MiB are available"),
        (None, "Float32", "700 MiB are available"),
    ],
    ids=["a GPU", "the host, without a GPU"],
)
def test_too_little_memory_is_reported(there, dtype, message):
    with pytest.raises(fit.DoesNotFit, match=message):
        _gpu_lines(there, dtype)


def test_pools_with_gpus_are_judged_for_the_processor_where_there_is_none():
    lines = [line.split() for line in _gpu_lines(None, "Float32", memory="4Gi")]
    assert [words[:4] for words in lines[::2]] == [[role, "requests", "a", "GPU,"] for role in ("decode", "prefill")]
    assert all(words[1:3] == ["fits:", "weights"] for words in lines[1::2])


@pytest.fixture
def checks(monkeypatch):
    """Questions about kernels, one of which does not compile."""
    asked = []

    def problems(gpus, path, formats, block_size, environ):
        asked.append((tuple(gpus), path.name, formats, block_size))
        return {"sm_90": "_silu_mul: why"}

    monkeypatch.setattr(kernels, "problems", problems)
    return asked


@pytest.fixture
def kernel_lines(checks, monkeypatch):
    def lines(**facts):
        monkeypatch.setattr(gpus, "find", lambda environ: Facts(**WITH_A_GPU | facts))
        return [line for line in doctor.gpus() if line.startswith("kernels ")]

    return lines


def test_kernels_of_the_builtin_model_are_checked_where_there_is_a_gpu(checks, kernel_lines, monkeypatch):
    problem = f"not all of builtin:{BUILTIN} compile for sm_90: _silu_mul: why"
    assert kernel_lines() == [f"kernels        {problem}"]
    assert checks == [((H200,), BUILTIN_FILE, ("None", "Auto", "Auto"), 64)]

    def resolve(name, progress):
        raise model.ModelUnavailable("no network")

    monkeypatch.setattr(model, "resolve", resolve)
    assert kernel_lines() == ["kernels        unknown: no network"]


@pytest.mark.parametrize("without", [{"gpus": ()}, {"triton": None}, {"cannot_compile": "no gcc"}])
def test_nothing_is_compiled_where_nothing_could_be_launched(checks, kernel_lines, without):
    assert (kernel_lines(**without), checks) == ([], [])


@pytest.fixture
def with_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (80 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(backends, "gpu", lambda name: Interpreted())
    monkeypatch.setattr(gpus, "devices", lambda: (H200,))
    monkeypatch.setattr(gpus, "visible", lambda environ: ("0",))


@pytest.mark.parametrize(("on_failure", "ended"), [("Auto", 1), ("Stop", 1), ("Torch", 0)])
def test_a_manifest_s_kernels_that_do_not_compile_end_with_1_where_workers_would_stop(
    checks, with_a_gpu, judged, on_failure, ended
):
    code, out = judged(_with_gpus(dtype="Float16", kvCacheDtype="FP8", blockSize=32, onKernelFailure=on_failure))
    assert (code, f"not all of {BUILTIN_FILE} compile for sm_90: _silu_mul: why" in out) == (ended, True)
    assert checks == [((H200,), BUILTIN_FILE, ("None", "Float16", "FP8"), 32)]


def test_a_manifest_whose_kernels_compile_fits_and_one_without_gpus_needs_none(checks, with_a_gpu, monkeypatch, judged):
    assert (judged(_service())[0], checks) == (0, [])
    monkeypatch.setattr(kernels, "problems", lambda *_asked: {"sm_90": ""})
    code, out = judged(_with_gpus(dtype="Float16"))
    assert (code, f"all of {BUILTIN_FILE} compile for sm_90" in out) == (0, True)


@pytest.mark.parametrize(
    ("scale", "kv", "gpu", "code"),
    [("k_scale", "FP8", False, 1), ("k_scale", "Auto", False, 0), ("q_proj.weight_scale", "Auto", True, 1)],
)
def test_scales_that_workers_refuse_are_reported(scale, kv, gpu, code, request, tmp_path, monkeypatch, judged):
    """Also those that the sizes do not follow from."""
    if gpu:
        request.getfixturevalue("with_a_gpu")
        monkeypatch.setattr(kernels, "problems", lambda *_asked: {})

    def change(tensors):
        for layer in range(2):
            tensors |= {f"model.layers.{layer}.self_attn.{part}_scale": torch.ones(1) for part in "kv"}
        tensors[f"model.layers.1.self_attn.{scale}"].fill_(torch.nan)

    quantized_folders.write(tmp_path / "m", quantized_folders.KINDS["float-quantized, channel"], change=change)
    item = _with_gpus(kvCacheDtype=kv) if gpu else manifest(engine={"kvCacheDtype": kv})
    item["spec"]["model"] = {"source": {"path": str(tmp_path / "m")}}
    ended, out = judged(item)
    assert (ended, f"model.layers.1.self_attn.{scale}" in out) == (code, bool(code))


def test_a_gpu_that_cannot_be_computed_on_is_reported(monkeypatch):
    def gpu(name):
        raise NoDevice("compute capability 7.0")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(backends, "gpu", gpu)
    with pytest.raises(doctor.SomethingWrong, match=r"^dtype: Auto +unknown: compute capability 7.0"):
        [*doctor.formats()]


def test_a_model_that_cannot_be_read_ends_with_1(tmp_path, monkeypatch, legato):
    monkeypatch.setattr(doctor, "SECTIONS", ())
    code, out, _ = legato("doctor", tmp_path)
    assert code == 1
    assert "config.json" in out


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
def test_the_model_s_defaults_for_sampling_are_printed(given, switch, code, said, tmp_path, monkeypatch, judged):
    monkeypatch.setattr(fit, "lines", lambda *_given: iter(()))
    monkeypatch.setattr(fit, "formats_of", lambda spec, path, gpus: "any")
    monkeypatch.setattr(fit, "degrees", lambda *_given: "any")
    (tmp_path / "generation_config.json").write_text(given)
    ended, out = judged(_service(source={"path": str(tmp_path)}, generationConfig=switch))
    assert (ended, said in out.partition("Sampling")[2]) == (code, True)


def test_the_page_with_the_checklist_is_the_one_that_scripts_golden_writes():
    assert checklist_page.PAGE.read_text() == items.page()


HUB = {"huggingFace": {"repo": "a/b", "revision": "0" * 40}}
CACHE = {"template": {"spec": {"volumes": [{"name": "cache", "emptyDir": {}}]}}}
NO_VOLUMES = {"template": {"spec": {"volumes": None}}}
GPU = {"resources": {"requests": {"nvidia.com/gpu": 1}}}
LIMITED = {"resources": {"requests": {"cpu": 1}, "limits": {"memory": "1Gi"}}}
DIGEST = f"registry/engine@sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("spec", "item", "expected"),
    [
        ({"transfer": {"transport": "SharedMemory"}}, "Manifest", "missing (spec.transfer.transport)"),
        ({"decode": LIMITED}, "Memory limits", "missing (prefill.resources, gateway.resources)"),
        ({"decode": LIMITED, "scaling": {"prefill": {"max": 0}}}, "CPU requests", "done"),
        ({"slo": {"ttft": "1s"}}, "Objectives", "done"),
        ({"scaling": {"mode": "Advisory"}}, "Bounds of the pools", "missing"),
        ({"prefill": GPU, "decode": GPU}, "GPU budget", "missing"),
        ({"prefill": GPU, "decode": GPU}, "Drivers and device plugins", "not checked"),
        ({"decode": {"resources": {"limits": {"amd.com/gpu": 1}}}}, "GPU resources", "not checked (amd.com/gpu)"),
        (
            {"model": {"source": HUB}, "decode": CACHE},
            "Storage of the model",
            "missing (prefill.template, gateway.template)",
        ),
        (
            {"model": {"source": HUB}, "prefill": {"template": {"spec": None}}, "decode": NO_VOLUMES, "gateway": CACHE},
            "Storage of the model",
            "missing (decode.template, prefill.template)",
        ),
        ({"model": {"source": {"path": "/m"}}}, "Storage of the model", "missing (model.source.path)"),
        ({"model": {"source": HUB}}, "Access token of the hub", "not checked (a/b)"),
        ({"internalTLS": {"secret": "s"}}, "Secrets and claims", "not checked (Secret s)"),
        ({"internalTLS": {"secret": "s"}}, "TLS between processes", "missing (mode is Permissive)"),
        ({"scaling": {"decode": {"min": 2}}}, "Two decode workers", "done"),
        ({"routing": {"whenPrefillUnavailable": "Wait"}}, "Loss of a prefill worker", "missing"),
        ({"rollout": {"autoRollback": False}}, "Failed rollouts", "done"),
        ({"gateway": {"trustedProxies": ["10.0.0.0/8"]}}, "API keys", "done"),
        (
            {"gateway": {"httpRoute": {"parentRefs": [{"name": "g"}]}}},
            "TLS for clients",
            "not checked (gateway.httpRoute)",
        ),
        ({"gateway": {"allowedOrigins": ["*"]}}, "Origins of web pages", "missing"),
        ({"gateway": {"accessLog": "Off"}}, "Access log", "missing"),
        ({"engine": {"image": DIGEST}, "gateway": {"image": "gateway:1"}}, "Images", "missing (gateway.image)"),
        ({}, "Network policies", "not checked"),
        ({}, "Two gateways", "missing"),
        ({}, "Quotas", "missing"),
    ],
)
def test_an_item_of_the_checklist_is_ticked_off_by_the_manifest(spec, item, expected):
    (line,) = [line for line in items.lines(parsing.read_mapping(manifest(**spec)).spec) if line[15:].startswith(item)]
    tick, name = line[:15].strip(), line[15:]
    assert name.startswith(item + expected.removeprefix(tick)), line
    assert expected.startswith(tick)
    assert (": " in name) == (tick in ("missing", "not checked"))


def test_a_manifest_whose_model_cannot_be_read_here_is_not_judged(judged, monkeypatch):
    def unreachable(*_):
        raise HubUnreachable("no network")

    monkeypatch.setattr(hub_outline, "outline", unreachable)
    code, out = judged(manifest(model={"source": {"pvc": {"claim": "models"}}}))
    assert (code, out.count("not judged on this machine: spec.model.source.pvc")) == (0, 2)
    code, out = judged(manifest(model={"source": HUB}))
    assert (code, out.count("not judged: no network")) == (0, 2)
    assert "not checked    Access token of the hub (a/b): set " in out
    assert judged(manifest(model={"source": HUB}, transfer={"transport": "SharedMemory"}))[0] == 1
