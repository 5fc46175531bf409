"""Products with quantized weights, against products with their values in float32."""

from dataclasses import replace

import plain_model
import torch
from made_codes import FORMS, made
from made_model import LLAMA_3_8B, MadeCodes, MadeModel, Row
from places import TOLERANCE, Place, over

from legato_engine.backends.cuda.device import Cuda, Interpreted
from legato_engine.backends.cuda.linear import packed
from legato_engine.backends.cuda.workspace import Room
from legato_engine.kernels.gpu.chips import has_float8
from legato_engine.kernels.gpu.configurations import choose
from legato_engine.kernels.gpu.float8 import Float8Rows
from legato_engine.kernels.gpu.linear import fp8
from legato_engine.kernels.gpu.linear.multiply import dequantize, multiply, parts_needed

FLOAT8 = tuple(name for name in FORMS if name.startswith("FP8"))


@over({"form": tuple(FORMS)}, rows=(3, 1, 16, 17, 100), shape=((70, 256), (1000, 4096), (1024, 1280)))
def test_a_few_rows_with_codes(place: Place, dtype: torch.dtype, form: str, rows: int, shape: tuple[int, int]) -> None:
    weight, x, bias = made(form, *shape), place.random(rows, shape[1], dtype=dtype), place.random(shape[0], dtype=dtype)
    tile = next(tile for tile in (16, 32, 64) if tile >= min(rows, 64))
    config = choose("multiply_codes", {"rows": tile, "bits": weight.element.bits}, place.chip)
    sums = torch.full((parts_needed(rows, place.processors, config),), torch.nan, device=place.device)
    out = torch.zeros(rows, shape[0] + 8, dtype=dtype, device=place.device)
    multiply(x, packed(weight, place.device), bias, out[:, : shape[0]], sums, place.processors, config)
    place.close(out[:, : shape[0]], x.cpu().float() @ weight.floats().t() + bias.cpu())
    assert not out[:, shape[0] :].any()


@over({"form": tuple(FORMS)}, shape=((70, 256), (1000, 4096)))
def test_dequantized_weights(place: Place, dtype: torch.dtype, form: str, shape: tuple[int, int]) -> None:
    weight = made(form, *shape)
    codes = packed(weight, place.device)
    for first, last in ((0, 64), (64, shape[0])):
        out = torch.full((last - first, shape[1]), torch.nan, dtype=dtype, device=place.device)
        dequantize(codes, first, out, choose("dequantize_codes", {}, place.chip))
        assert torch.equal(out.cpu(), weight.floats()[first:last].to(dtype))


@over({"form": FLOAT8}, rows=(5, 64, 300), shape=((80, 384), (1024, 4096)))
def test_fp8_activations(place: Place, dtype: torch.dtype, form: str, rows: int, shape: tuple[int, int]) -> None:
    """By Triton, and by torch for a scale per output. Quantized rows are near the rows; products are those of the
    quantized ones."""
    if not (place.small or has_float8(place.chip)):
        return
    weight, x, bias = made(form, *shape), place.random(rows, shape[1], dtype=dtype), place.random(shape[0], dtype=dtype)
    x[0] = 0
    groups = weight.scale.values.shape[1]
    codes = torch.zeros(rows, shape[1], dtype=torch.float8_e4m3fn, device=place.device)
    scales = torch.zeros(groups, rows, device=place.device)
    rounded = Float8Rows(codes, scales, weight.group)
    fp8.quantize_rows(x, rounded, choose("quantize_rows", {}, place.chip))
    given = codes.float() * scales.t().repeat_interleave(weight.group, 1)[:, : shape[1]]
    assert ((given - x).abs() <= x.abs() / 16 + scales.max() / 256).all()

    out, matrix = torch.zeros(rows, shape[0], dtype=dtype, device=place.device), packed(weight, place.device)
    expected = given.cpu() @ weight.floats().t() + bias.cpu()
    fp8.multiply_fp8(rounded, matrix, bias, out, choose("multiply_fp8", {}, place.chip))
    place.close(out, expected)
    if groups == 1 and dtype == torch.bfloat16:
        held = matrix.codes.view(torch.float8_e4m3fn)
        torch._scaled_mm(codes, held.t(), scales.t(), matrix.scale.values, bias=bias, out_dtype=dtype, out=out.zero_())
        place.close(out, expected)


@over(form=("AWQ", "Q4_K", "FP8, blocks", "FP8, channel"))
@torch.inference_mode()
def test_a_model_of_codes(place: Place, dtype: torch.dtype, form: str) -> None:
    """Steps of each size that is computed in its own way, and replayed ones, which equal eager ones bit for bit."""
    config = replace(
        LLAMA_3_8B, layers=2, hidden_size=256, heads=4, kv_heads=2, head_dim=64, intermediate_size=512, vocab_size=500
    )
    weights = MadeCodes(config, dtype, torch.device("cpu"), form)
    device = Interpreted(place.processors) if place.small else Cuda(place.device)
    model = MadeModel(weights, dtype, device, Room(256, 4, 16, 16), 64)
    model.arena.fill_(torch.nan)
    tokens = torch.randint(config.vocab_size, (202,)).tolist()
    expected = plain_model.logits(weights, tokens)
    most = 0.15 if "FP8" in form and has_float8(place.chip) else 10 * TOLERANCE[dtype]
    start, blocks = 0, range(40, 53)
    for end in (12, 40) if place.small else (12, 40, 90, 200):
        found = model.step([Row(tokens[start:end], start, blocks)]).cpu()[0]
        assert (found - expected[end - 1]).norm() <= most * expected[end - 1].norm()
        start = end
    row = Row(tokens[start : start + 1], start, blocks)
    eager = model.eager([row])[:1].clone()
    for _captured_then_replayed in range(2):
        assert torch.equal(model.step([row]), eager)
