"""Unpacks codes of 4 and 8 bits from 32-bit words."""

import torch

# AutoAWQ's GEMM kernel takes the outputs 0, 2, 4, 6, 1, 3, 5, 7 from the lowest to the highest bits of a word.
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


def unpack(words: torch.Tensor, bits: int) -> torch.Tensor:
    """int32 [rows, words] → uint8 [rows, words · 32 / bits], the lowest bits of a word first."""
    octets = words.contiguous().view(torch.uint8)
    return octets if bits == 8 else torch.stack((octets & 15, octets >> 4), -1).flatten(-2)


def unpack_awq(words: torch.Tensor) -> torch.Tensor:
    """int32 [rows, words] → uint8 [rows, words · 8], 4 bits each, in the order of AutoAWQ."""
    codes = unpack(words, 4).view(len(words), -1, len(_AWQ_PLACES))
    return codes[:, :, _AWQ_PLACES].flatten(1)
