"""Choice of the number formats that a processor computes in, with the reason."""

from dataclasses import replace

import pytest
import torch
from tiny_families import FAMILIES
from tiny_models import LLAMA, PROCESSORS, RandomCheckpoint

from legato_engine.errors import UnusableFormat
from legato_engine.kernels import paths
from legato_engine.runner import formats
from legato_engine.runner.formats import Formats
from legato_engine.weights.grouped import GroupedForm
from legato_engine.weights.quantization import rounding
from legato_engine.weights.quantization.formats import Element

FLOATS = RandomCheckpoint(LLAMA)
Q4_0 = GroupedForm(Element.INT4, 32, 4.5)


def test_sizes_that_kernels_cannot_count_in_are_left_to_torch():
    chosen = formats.choose("auto", PROCESSORS["codes"], None, LLAMA, block_size=6)

    assert chosen.backend == "torch"
    assert chosen.fallback == "blocks of 6 tokens are not a multiple of 4"
    assert "blocks of 6 tokens are not a multiple of 4" in str(chosen)
    odd = formats.choose("float32", PROCESSORS["codes"], None, replace(LLAMA, head_dim=20), 16)
    assert (odd.backend, odd.fallback) == ("torch", "head_dim 20 is not a multiple of 32")
    assert "head_dim 20 is not a multiple of 32" in str(odd)
    for policy in ("Auto", "Torch"):
        assert formats.allowed(odd, FLOATS, policy) is odd
    with pytest.raises(
        UnusableFormat, match=r"^no compiled kernels: head_dim 20 is not a multiple of 32; allowed with"
    ):
        formats.allowed(odd, FLOATS, "Stop")
    whole = formats.choose("Float32", PROCESSORS["codes"], None, LLAMA, 16)
    assert (formats.allowed(whole, FLOATS, "Stop"), whole.path) == (whole, paths.FLOAT32)
    assert formats.choose("BFloat16", PROCESSORS["codes"], None, replace(LLAMA, head_dim=20), 16).fallback == ""


@pytest.mark.parametrize(
    ("dtype", "processor", "kv", "allowed"),
    [
        ("BFloat16", PROCESSORS["codes"], "Float32", "Auto, bfloat16, FP8"),
        ("auto", replace(PROCESSORS["codes"], amx=True), "Float32", "Auto, bfloat16"),
        ("Float32", PROCESSORS["codes"], "Float16", "Auto, float32, bfloat16, FP8"),
    ],
    ids=["torch", "tiles", "no such KV"],
)
def test_kv_in_a_format_that_nothing_reads_is_refused(dtype, processor, kv, allowed):
    chosen = formats.choose(dtype, processor, None, LLAMA, 16)
    assert formats.choose(dtype, processor, None, LLAMA, 16, kv_dtype="Auto") == chosen
    with pytest.raises(UnusableFormat, match=f"KV cannot be {kv} with {chosen.name}.*allowed: {allowed}$"):
        formats.choose(dtype, processor, None, LLAMA, 16, kv_dtype=kv)


@pytest.mark.parametrize("dtype", ["auto", "Float32", "BFloat16"])
def test_kv_in_e4m3_has_a_path_on_every_processor(dtype):
    """One that reads it, instead of a faster one that does not, which the reason names."""
    for processor in PROCESSORS.values():
        chosen = formats.choose(dtype, processor, None, LLAMA, 16, kv_dtype="FP8")
        assert chosen.kv == paths.FLOAT8
        attention = " and attention in float32" if chosen.name == "int8-bf16" else ""
        assert str(chosen).endswith(f"; KV in float8_e4m3fn{attention} instead")
        assert ("`tiles` would be faster: its KV is bfloat16" in str(chosen)) == (processor.amx and dtype == "auto")


@pytest.mark.parametrize(
    ("quantization", "chip", "hidden_size", "slower", "form"),
    [
        ("FP8", "sm_89", 96, None, "kept as codes (more than 32 rows: FP8"),
        ("FP8", "sm_80", 96, "multiplied with activations of 16 bits instead of 8, for which they have no", "16 bits"),
        ("Int8", "sm_90", 96, "multiplied with activations of 16 bits instead of 8, for which they have no", "16 bits"),
        ("FP8", "sm_90", 92, "dequantized, because their codes have no", "without a kernel on sm_90"),
    ],
)
def test_weights_that_a_gpu_computes_in_a_slower_way_are_a_fallback(quantization, chip, hidden_size, slower, form):
    checkpoint = rounding.rounded(RandomCheckpoint(replace(LLAMA, hidden_size=hidden_size)), quantization)
    chosen = Formats("bfloat16", "cuda", torch.bfloat16, "bfloat16", "", chip=chip)
    assert form in chosen.quantized(checkpoint)
    assert formats.allowed(chosen, checkpoint, "Auto") is chosen
    if slower is None:
        assert formats.allowed(chosen, checkpoint, "Stop").weights_fallback(checkpoint) == ""
        return
    assert f"weights {slower} product on {chip}: model.layers.0." in chosen.weights_fallback(checkpoint)
    with pytest.raises(UnusableFormat, match=f"^no compiled kernels: weights {slower}.*; allowed with onKernelFailure"):
        formats.allowed(chosen, checkpoint, "Stop")


class CodedExperts(RandomCheckpoint):
    """Experts in Q4_0, except for the weight `other`, whose form is given."""

    def __init__(self, other, form):
        super().__init__(FAMILIES["qwen 3 moe"])
        self._other, self._form = other, form

    def quantized(self):
        return frozenset(name for name in self.names() if ".experts." in name)

    def grouped_form(self, name):
        return self._form if name == self._other else Q4_0 if name in self.quantized() else None


@pytest.mark.parametrize(
    ("projection", "form", "words"),
    [
        ("down_proj", replace(Q4_0, bits=5.5), None),  # scales in float32, which can be converted
        ("down_proj", None, "down_proj.weight is not quantized"),
        ("down_proj", replace(Q4_0, group=64), "down_proj.weight as 4-bit integers in groups of 64"),
        ("up_proj", replace(Q4_0, element=Element.FLOAT4), "up_proj.weight as FP4 in groups of 32"),
        ("gate_proj", replace(Q4_0, details=("with minima",)), "as 4-bit integers in groups of 32, with minima"),
    ],
)
def test_experts_of_a_layer_in_several_formats_are_refused_for_a_gpu_before_weights_are_read(projection, form, words):
    checkpoint = CodedExperts(f"model.layers.1.mlp.experts.5.{projection}.weight", form)
    chosen = Formats("bfloat16", "cuda", torch.bfloat16, "bfloat16", "", chip="sm_90")
    assert formats.allowed(replace(chosen, backend="torch"), checkpoint, "Auto")
    if words is None:
        assert formats.allowed(chosen, checkpoint, "Auto") is chosen
        return
    first = "gate" if projection == "up_proj" else projection.removesuffix("_proj")
    with pytest.raises(UnusableFormat, match=rf"random: model\.layers\.1\.mlp\.experts\.0\.{first}_proj.*{words}; on"):
        formats.allowed(chosen, checkpoint, "Auto")
