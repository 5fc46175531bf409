"""bfloat16 in Triton's interpreter as tests use it: what kernels compute of it there says what a GPU computes."""

import math

import torch
import triton
import triton.language as tl


@triton.jit
def _round(numbers, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out + at, tl.load(numbers + at).to(tl.bfloat16))


@triton.jit
def _multiply(a, b, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    first = tl.dot(tl.load(a + at), tl.trans(tl.load(b + at)))
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at), first))


def test_conversions_round_to_the_nearest_and_ties_to_even():
    """Also up to a power of two and to infinity, among subnormal numbers, and a NaN whose bits are all set."""
    spacing = 2.0**-7
    ties = [1 + 0.49 * spacing, 1 + 0.5 * spacing, 1 + 0.51 * spacing, 1 + 1.5 * spacing, -1 - 1.5 * spacing]
    ends = [2 - spacing / 4, torch.finfo(torch.float32).max, 3e-40, -0.0, math.inf, -math.inf, math.nan]
    all_set = torch.tensor([-1], dtype=torch.int32).view(torch.float32)
    numbers = torch.cat((torch.tensor(ties + ends), all_set, torch.randn(51)))
    out = torch.empty(64, dtype=torch.bfloat16)
    _round[(1,)](numbers, out, SIZE=64)
    assert out[:5].tolist() == [1, 1, 1 + spacing, 1 + 2 * spacing, -1 - 2 * spacing]
    torch.testing.assert_close(out, numbers.bfloat16(), rtol=0, atol=0, equal_nan=True)


def test_products_are_those_of_the_numbers():
    a, b = torch.randn(16, 16).bfloat16(), torch.randn(16, 16).bfloat16()
    out = torch.empty(16, 16)
    _multiply[(1,)](a, b, out, SIZE=16)
    torch.testing.assert_close(out, a.float() @ b.float() + a.float() @ b.float().t())
