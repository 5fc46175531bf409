"""Linear layers of mixed parts: as many rows as there are, the result is that of the weights in the file."""

import numpy as np
import pytest
import torch

from legato_engine.backends.cpu.codes import Codes
from legato_engine.backends.cpu.linear_float32 import LinearFloat32, Scratch, load
from legato_engine.kernels import paths
from legato_engine.weights.packed import Packed, Scales

INPUTS = 2080  # a part of 128 outputs is more than the scratch takes at once of fewer inputs


def four(outputs):
    codes = torch.randint(0, 16, (outputs, INPUTS), dtype=torch.uint8)
    return Packed(4, codes, *(Scales((torch.rand(outputs, INPUTS // 32) * 0.01).half()) for _ in range(2)))


def eight(outputs):
    codes = torch.randint(-128, 128, (outputs, INPUTS), dtype=torch.int8)
    return Packed(8, codes, Scales((torch.rand(outputs, INPUTS // 32) * 0.01).half()))


class Held:
    """A checkpoint of these weights."""

    def __init__(self, **weights):
        self._weights = {f"{name}.weight": weight for name, weight in weights.items()}

    def packed(self, name):
        return found if isinstance(found := self._weights[name], Packed) else None

    def tensor(self, name):
        return found.floats() if isinstance(found := self._weights[name], Packed) else found

    def vector(self, name):
        return self.tensor(name)


@pytest.mark.parametrize("rows", [1, 32, 33, 63, 100])
def test_outputs_stay_in_order_whatever_holds_them(rows):
    held = Held(q=four(320), k=four(32), v=eight(160), gate=torch.randn(64, INPUTS).half())
    layer = load(held, ["q", "k", "v", "gate"], False, paths.CODES, Scratch())
    x, out = torch.randn(rows, INPUTS), np.zeros((rows + 3, 576), np.float32)

    layer(x.numpy(), rows, out)

    weight = torch.cat([held.tensor(f"{name}.weight").float() for name in ("q", "k", "v", "gate")])
    assert layer.outputs == len(weight) == 576
    torch.testing.assert_close(torch.from_numpy(out[:rows]), x @ weight.T, atol=2e-3, rtol=1e-4)
    assert not out[rows:].any()


def test_no_float32_copy_of_codes_is_kept():
    """Beside the codes there is one buffer for all layers, no larger than a part of one."""
    scratch, x = Scratch(), np.zeros((64, INPUTS), np.float32)
    layers = [LinearFloat32([Codes(four(320), paths.CODES)], scratch, None) for _ in range(3)]
    for layer in layers:
        layer(x, 64, np.zeros((64, 320), np.float32))
        assert layer.nbytes == 320 * INPUTS * 5 / 8
    assert scratch._array.nbytes == 128 * INPUTS * 4


def test_a_bias_is_added_once():
    bias = torch.randn(32)
    layer = LinearFloat32([Codes(four(32), paths.CODES)], Scratch(), bias)
    for rows in (1, 40):
        out = np.zeros((rows, 32), np.float32)
        layer(np.zeros((rows, INPUTS), np.float32), rows, out)
        assert np.array_equal(out, bias.expand(rows, 32))
