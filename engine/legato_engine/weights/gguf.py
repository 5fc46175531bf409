"""Weights from a GGUF file, with Hugging Face's names and rotary layout.

llama.cpp's conversion of Llama reorders the rows of `q_proj` and `k_proj` so that rotary pairs are neighbours; this
module reverses that on the packed rows.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from mmap import mmap
from pathlib import Path

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from legato_engine.errors import CorruptModel, MissingTensor
from legato_engine.models import gguf_config
from legato_engine.models.hyperparameters import rope
from legato_engine.weights import gguf_blocks, gguf_parts, gguf_tensors, grouped
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.cut import WHOLE, Cut
from legato_engine.weights.fingerprint import FileSpan
from legato_engine.weights.grouped import Grouped, GroupedForm
from legato_engine.weights.packed import Packed
from legato_engine.weights.reading.span_reader import SpanReader, rows_of
from legato_protocol.model_files.gguf_header import TensorInfo

Type = GGMLQuantizationType
_FLOATS = {Type.F32: torch.float32, Type.F16: torch.float16, Type.BF16: torch.bfloat16}
TYPES = (*_FLOATS, *gguf_blocks.KINDS)
_PART = (1 << 15) - 1  # values dequantized at a time: they fit a core's cache, and torch uses no threads for them
_PARTS = 32  # per task of a thread
_PART_THERE = 1 << 24  # the same on a device

# llama.cpp interleaves rotary pairs.
_REORDERED = (
    "LlamaForCausalLM",
    "MixtralForCausalLM",
    "GraniteForCausalLM",
    "GraniteMoeForCausalLM",
    "SmolLM3ForCausalLM",
)


class GgufFile(Checkpoint):
    """A mapped GGUF file, or all parts of a split one. Pages are read when a tensor is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        parts = gguf_parts.open_parts(path)
        for part in parts:
            gguf_parts.check(part, TYPES)
        tensors = gguf_parts.tensors(parts)
        self._parts = {name: part for part in parts for name in part.header.tensors}
        types = dict.fromkeys(Type(info.type).name for info in tensors.values() if info.type in gguf_blocks.KINDS)
        self.quantization = f"GGUF {', '.join(types)}"
        self._spans = {part.path: tuple(_span(info) for info in part.header.tensors.values()) for part in parts}
        metadata = parts[0].header.metadata
        architecture = str(metadata.get("general.architecture"))
        names = rope.GGUF_FACTORS if architecture == "phi3" else rope.GGUF_FACTORS[:1]
        factors = {name: tensors.pop(name) for name in names if name in tensors}
        self.config = gguf_config.read(
            metadata,
            frozenset((*tensors, *factors)),
            {name: tuple(self._floats(info).tolist()) for name, info in factors.items()},
            str(path),
        )
        self._tensors = gguf_tensors.by_name(tensors, architecture, self.config.predictors)
        self._reader = SpanReader()

    def spans(self) -> Mapping[Path, Sequence[FileSpan]]:
        return self._spans

    def names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    def quantized(self) -> frozenset[str]:
        return frozenset(name for name, info in self._tensors.items() if info.type in gguf_blocks.KINDS)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._info(name).shape

    def tensor(self, name: str) -> torch.Tensor:
        info = self._info(name)
        kind = Type(info.type)
        if kind in _FLOATS:
            return _reordered(self._floats(info), self._heads(name))
        dequantized = torch.empty(info.shape)
        self.read(name, dequantized)
        return dequantized

    def read(self, name: str, out: torch.Tensor) -> None:
        self.read_part(name, WHOLE, out)

    def read_part(self, name: str, cut: Cut, out: torch.Tensor) -> None:
        info = self._info(name)
        kind = Type(info.type)
        if out.is_meta:
            super().read_part(name, cut, out)
            return
        if kind in _FLOATS:
            if self._heads(name) or cut != WHOLE or not (out.is_cuda or out.dtype == _FLOATS[kind]):
                super().read_part(name, cut, out)
            else:
                self._reader.read(self._parts[info.name].path, _span(info), _FLOATS[kind], out)
            return
        if out.is_cuda:
            self._dequantize_there(name, cut, out)
            return
        rows, columns = self._rows(name, cut)
        into, inference = out.view(len(rows), out.shape[-1]), torch.is_inference_mode_enabled()
        most = max(1, _PART // info.shape[-1])

        def fill(task: int) -> None:
            with torch.inference_mode(inference):
                for first in range(task, min(task + most * _PARTS, len(rows)), most):
                    into[first : first + most] = self._dequantized(info, rows[first : first + most])[:, columns]

        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            deque(pool.map(fill, range(0, len(rows), most * _PARTS)), 0)

    def release(self) -> None:
        self._reader.close()

    def _dequantize_there(self, name: str, cut: Cut, out: torch.Tensor) -> None:
        """Reads the packed rows to the device of `out`, and dequantizes them there in parts."""
        info, (rows, columns) = self._info(name), self._rows(name, cut, out.device)
        into = out.view(len(rows), out.shape[-1])
        most = max(1, _PART_THERE // info.shape[-1])
        for first in range(0, len(rows), most):
            into[first : first + most] = self._dequantized(info, rows[first : first + most])[:, columns]

    def packed(self, name: str) -> Packed | None:
        return self.packed_part(name, WHOLE)

    def packed_part(self, name: str, cut: Cut) -> Packed | None:
        info = self._info(name)
        if Type(info.type) not in gguf_blocks.KINDS:
            return None
        rows, columns = self._rows(name, cut)
        packed = self._unpacked(info, rows)
        return packed and packed.part(Cut(inputs=(columns.start, columns.stop)))

    def packed_bits(self, name: str) -> float | None:
        kind = Type(self._info(name).type)
        return gguf_blocks.KINDS[kind].bits if kind in gguf_blocks.KINDS else None

    def grouped(self, name: str, place: torch.device | None = None) -> Grouped | None:
        return self.grouped_part(name, WHOLE, place)

    def grouped_part(self, name: str, cut: Cut, place: torch.device | None = None) -> Grouped | None:
        info = self._info(name)
        kind = Type(info.type)
        if kind not in gguf_blocks.KINDS:
            return None
        rows, columns = self._rows(name, cut, place)
        packed, inputs = self._unpacked(info, rows), Cut(inputs=(columns.start, columns.stop))
        if kind is Type.MXFP4:
            return gguf_blocks.grouped_fp4(rows).part(inputs)
        return None if packed is None else grouped.from_packed(packed, symmetric=kind is Type.Q4_0).part(inputs)

    def grouped_form(self, name: str) -> GroupedForm | None:
        info = self._info(name)
        kind = Type(info.type)
        return _grouped_form(kind, info.shape[-1]) if kind in gguf_blocks.KINDS else None

    def _unpacked(self, info: TensorInfo, rows: torch.Tensor) -> Packed | None:
        """Codes of packed rows, uint8 [out, bytes]; None if there are no exact ones. Raises CorruptModel."""
        try:
            return gguf_blocks.unpack(Type(info.type), rows)
        except ValueError as error:
            raise CorruptModel(f"{self.path}: tensor {info.name}: {error}; finite ones are needed") from None

    def _dequantized(self, info: TensorInfo, rows: torch.Tensor) -> torch.Tensor:
        """float32 [out, in]. Raises CorruptModel."""
        packed = self._unpacked(info, rows)
        if packed is not None:
            return packed.floats()
        return torch.from_numpy(dequantize(rows.cpu().contiguous().numpy(), Type(info.type))).to(rows.device)

    def _info(self, name: str) -> TensorInfo:
        if name not in self._tensors:
            raise MissingTensor(f"{self.path}: tensor {name} is missing")
        return self._tensors[name]

    def _heads(self, name: str) -> int:
        """Number of heads whose rows llama.cpp reordered in this tensor; 0 if it did not."""
        if self.config.architecture not in _REORDERED:
            return 0
        if ".q_proj." in name:
            return self.config.heads
        return self.config.kv_heads if ".k_proj." in name else 0

    def _data(self, info: TensorInfo) -> mmap:
        return self._parts[info.name].data

    def _floats(self, info: TensorInfo) -> torch.Tensor:
        kind = _FLOATS[Type(info.type)]
        values = torch.frombuffer(self._data(info), dtype=kind, count=math.prod(info.shape), offset=info.offset)
        return values.view(info.shape)

    def _rows(self, name: str, cut: Cut, place: torch.device | None = None) -> tuple[torch.Tensor, slice]:
        """Packed rows of a part in Hugging Face's order, uint8 [out, bytes], in whole blocks; and the part's inputs
        within these. Several threads read rows to `place`; without one, they are mapped."""
        info = self._info(name)
        outputs, inputs, heads = math.prod(info.shape[:-1]), info.shape[-1], self._heads(name)
        group, size = GGML_QUANT_SIZES[Type(info.type)]
        parts = list[torch.Tensor]()
        for part in cut.stored((outputs, inputs), inputs=group):
            count, blocks = part.outputs[1] - part.outputs[0], (part.inputs[0] // group, part.inputs[1] // group)
            span = rows_of(_span(info), outputs, part.outputs, (blocks[0] * size, blocks[1] * size))
            if place is None:
                whole = torch.frombuffer(
                    self._data(info), dtype=torch.uint8, count=_span(info).size, offset=info.offset
                )
                raw = whole.view(outputs, -1)[slice(*part.outputs), blocks[0] * size : blocks[1] * size]
            else:
                raw = torch.empty(count, span.width, dtype=torch.uint8, device=place)
                self._reader.read(self._parts[info.name].path, span, torch.uint8, raw)
            # A part has whole heads, of which only the rows within each are in another order.
            parts.append(_reordered(raw, heads * count // outputs))
        return parts[0] if len(parts) == 1 else torch.cat(parts), part.columns


@cache
def _grouped_form(kind: Type, inputs: int) -> GroupedForm:
    """The form of a row of zeros: experts are thousands of weights of few forms."""
    group, size = GGML_QUANT_SIZES[kind]
    zeros = torch.zeros(1, inputs // group * size, dtype=torch.uint8)
    if kind is Type.MXFP4:
        codes = gguf_blocks.grouped_fp4(zeros)
    else:
        row = gguf_blocks.unpack(kind, zeros)
        assert row is not None
        codes = grouped.from_packed(row, symmetric=kind is Type.Q4_0)
    return GroupedForm(codes.element, codes.group, codes.bits, details=codes.details)


def _span(info: TensorInfo) -> FileSpan:
    return FileSpan(info.offset, gguf_tensors.byte_size(info))


def _reordered(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows in Hugging Face's order: each head's first halves of the rotary pairs, then its second halves."""
    if not heads or rows.shape[0] % (2 * heads):
        return rows  # a wrong shape, if it does not divide, which `open_weights` refuses
    pairs = rows.view(heads, rows.shape[0] // heads // 2, 2, -1)
    return pairs.transpose(1, 2).reshape(rows.shape)
