"""Mixtures of experts by Triton, against the reference: awkward sizes, and weights of every format. Choices are tested
with all backends."""

from dataclasses import replace

import pytest
import torch
from experts_step import MixtureStep, check, shape_of
from made_codes import FORMS, made
from places import here

from legato_engine.errors import UnusableFormat
from legato_engine.kernels.routing import Gating
from legato_engine.weights.packed import Scales

PLACE = here()
FEW, ONE = MixtureStep(16, 13), MixtureStep(1, 1)
SEVERAL, MANY = MixtureStep(48, 37), MixtureStep(1040, 1030)  # spans of one tile of tokens, and of several
WHOLE = MixtureStep(64, 60)  # of one expert
CASES = {
    "one expert": (shape_of((1, 1)), FEW, {}),
    "one token": (shape_of((9, 4)), ONE, {}),
    "more experts than pairs": (shape_of((40, 2), hidden=72, inner=40), FEW, {}),
    "all tokens to one expert": (shape_of((5, 1), biases=True), SEVERAL, {"only": 3}),
    "spans of several tiles": (shape_of((3, 2), hidden=16, inner=8), MANY, {}),
    "gpt-oss": (shape_of((7, 2), gating=Gating.CLAMPED, biases=True), FEW, {}),
    "split inputs": (shape_of((4, 1), hidden=32, inner=1100, gating=Gating.CLAMPED, biases=True), ONE, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_mixtures(case):
    shape, step, options = CASES[case]
    check(PLACE, torch.float32, shape, step, **options)


@pytest.mark.parametrize("form", ["FP8, blocks", "FP8, channel"])
def test_weights_and_activations_in_fp8(form):
    step = MixtureStep(128, 120)  # of two experts
    check(replace(PLACE, chip="sm_90"), torch.bfloat16, shape_of((2, 1), hidden=256, inner=384), step, form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("step", [FEW, WHOLE], ids=["few rows", "many rows"])
def test_weights_in_codes(form, step):
    """Codes are multiplied in blocks of few rows, and dequantized in blocks of many."""
    hidden = 256 if form in ("Q4_K", "Q6_K") else 128
    dtype = torch.float16 if form in ("Q4_K", "AWQ", "FP8, channel") else torch.bfloat16
    check(PLACE, dtype, shape_of((3, 1) if step is FEW else (1, 1), hidden=hidden, inner=hidden), step, form)


def with_other_scales(codes):
    """As in files that store float32 scales and zero points, where another expert's fit in float16 without any."""
    part = codes["1.up.weight"]
    zeros = torch.full(part.scale.values.shape, 7, dtype=torch.int8)
    codes["1.up.weight"] = replace(part, scale=Scales(part.scale.values.float() * 1.01), zeros=zeros)


def test_scales_of_other_types_are_widened():
    check(PLACE, torch.float32, shape_of((3, 2), hidden=128, inner=128), FEW, "W4A16", change=with_other_scales)


def test_experts_of_several_formats_are_refused():
    with pytest.raises(UnusableFormat, match=r"^1.up.weight is quantized differently .*; all must be alike"):
        check(
            PLACE, torch.float32, shape_of((3, 2), hidden=128, inner=128), FEW, "W4A16",
            change=lambda codes: codes.update({"1.up.weight": made("W8A16", 128, 128)}),
        )  # fmt: skip
