"""Mixtures of experts, against the reference: every number of tokens and rows that is computed in its own way."""

import torch
from experts_step import MadeExperts, MadeLayer, MixtureStep, check, shape_of
from made_codes import FORMS
from places import Place, over

from legato_engine.kernels.routing import Gating

STEPS = (MixtureStep(16, 13), MixtureStep(1, 1), MixtureStep(64, 64), MixtureStep(320, 313), MixtureStep(2048, 2041))
SIZES = ((9, 3, 128, 96), (1, 1, 64, 40), (128, 8, 1024, 768), (32, 4, 720, 360))  # experts, active, hidden, inner


@over(gating=tuple(Gating), step=STEPS, sizes=SIZES)
def test_weights_in_floating_point(
    place: Place, dtype: torch.dtype, gating: Gating, step: MixtureStep, sizes: tuple[int, ...]
) -> None:
    count, active, hidden, inner = sizes
    check(place, dtype, shape_of((count, active), hidden, inner, gating, biases=True), step)


@over({"form": tuple(FORMS)}, step=STEPS, sizes=((3, 1, 256, 256), (16, 4, 1024, 768)))
def test_weights_in_codes(
    place: Place, dtype: torch.dtype, form: str, step: MixtureStep, sizes: tuple[int, ...]
) -> None:
    count, active, hidden, inner = sizes
    check(place, dtype, shape_of((count, active), hidden, inner), step, form)


@over({"tokens": (16, 48)})
def test_one_token_that_is_not_a_number(place: Place, dtype: torch.dtype, tokens: int) -> None:
    shape = shape_of((9, 3))
    x = place.random(tokens, shape.hidden, dtype=dtype)
    layer = MadeLayer(place, dtype, shape, MadeExperts(shape, dtype), MixtureStep(tokens, tokens))
    expected = layer(x).clone()
    x[2, 7] = torch.nan
    found = layer(x)
    assert found[2].isnan().all()
    others = [token for token in range(tokens) if token != 2]
    place.close(found[others], expected[others])


@over(tokens=(1, 16, 64))
@torch.inference_mode()
def test_a_replayed_mixture_chooses_experts_anew(place: Place, dtype: torch.dtype, tokens: int) -> None:
    shape = shape_of((32, 3))
    x, others = (place.random(tokens, shape.hidden, dtype=dtype) for _ in range(2))
    layer = MadeLayer(place, dtype, shape, MadeExperts(shape, dtype), MixtureStep(tokens, tokens))
    expected = layer(others).clone()
    layer(x)
    again = layer.device.capture(lambda: layer(x))
    x.copy_(others)
    again()
    assert torch.equal(layer.results(tokens), expected)
