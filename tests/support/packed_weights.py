"""Random matrices as codes and scales, as files of each quantized type hold them."""

from dataclasses import replace

import torch

from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.cut import Cut
from legato_engine.weights.grouped import Grouped
from legato_engine.weights.packed import Packed, Scales

PLACES = [torch.device(kind) for kind in ("cpu", "cuda") if kind == "cpu" or torch.cuda.is_available()]

TYPES = "Q4_1", "Q4_K", "Q8_0", "Q5_1", "Q5_K", "Q6_K"


def packed(kind: str, outputs: int, inputs: int, draw: torch.Generator | None = None) -> Packed:
    """Groups of 32 inputs, but of 16 for Q6_K; K types have a float16 factor for the scales of 256 inputs."""

    def halves(columns: int, by: float = 1) -> torch.Tensor:
        return ((torch.rand(outputs, columns, generator=draw) * 0.02 + 0.001) * by).half()

    def scales(by: float = 1) -> Scales:
        groups = inputs // (16 if kind == "Q6_K" else 32)
        if not kind.endswith("K"):
            return Scales(halves(groups, by))
        values = torch.randint(1, 64, (outputs, groups), dtype=torch.int8, generator=draw)
        return Scales(values, halves(inputs // 256, by / 32))

    shape = outputs, inputs
    if kind.startswith("Q4"):
        codes = torch.randint(0, 16, shape, dtype=torch.uint8, generator=draw)
        return Packed(4, codes, scales(), scales(1 if kind == "Q4_K" else -8))
    codes = torch.randint(-128, 128, shape, dtype=torch.int8, generator=draw)
    if kind == "Q5_K":
        codes &= 31
    return Packed(8, codes, scales(1 / 16), scales() if kind.startswith("Q5") else None)


def grouped(checkpoint: Checkpoint, name: str) -> Grouped | None:
    """The codes of the mapped file. The same are read to each device."""
    mapped = checkpoint.grouped(name)
    for place in PLACES:
        read = checkpoint.grouped(name, place)
        assert (read is None) == (mapped is None)
        if read is not None and mapped is not None:
            assert read.codes.device.type == place.type
            assert torch.equal(_on_host(read).floats(), mapped.floats())
    return mapped


def check_parts(checkpoint: Checkpoint, name: str) -> None:
    """Parts of a matrix are read as they are in the whole; none is within a group of inputs."""
    (outputs, inputs), whole = checkpoint.shape(name), checkpoint.tensor(name)
    quarter = outputs // 4
    several = ((0, quarter), (2 * quarter, outputs))
    for cut in (Cut(outputs=((quarter, outputs),)), Cut(outputs=several), Cut(inputs=(inputs // 2, inputs)), Cut()):
        dequantized = torch.empty(cut.shape(whole.shape))
        checkpoint.read_part(name, cut, dequantized)
        assert torch.equal(dequantized, cut.of(whole))
        packed, part = checkpoint.packed(name), checkpoint.packed_part(name, cut)
        assert (packed is None) == (part is None)
        if packed is not None and part is not None:
            assert (part.form, part.codes.is_contiguous()) == (packed.form, packed.codes.is_contiguous())
            assert torch.equal(part.floats(), cut.of(packed.floats()))
        for place in (None, *PLACES):
            codes = checkpoint.grouped(name)
            assert codes is not None
            try:
                read = checkpoint.grouped_part(name, cut, place)
            except ValueError:
                assert cut.inputs is not None
                assert codes.order is not None or cut.inputs[0] % codes.group
            else:
                assert read is not None
                assert codes.order is not None or read.form == codes.form
                assert torch.equal(_on_host(read).floats(), cut.of(codes.floats()))


def _on_host(weight: Grouped) -> Grouped:
    def host(scales: Scales | None) -> Scales | None:
        return scales and Scales(scales.values.cpu(), None if scales.factors is None else scales.factors.cpu())

    return replace(weight, codes=weight.codes.cpu(), scale=host(weight.scale), minimum=host(weight.minimum))
