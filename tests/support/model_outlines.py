"""Folders of published models whose weights are holes of a sparse file: their sizes, without their contents."""

import json
import math
import shutil
from pathlib import Path

from checked_kernels import OUTLINES

from legato_engine.models import config as configs
from legato_engine.weights.config_file import CONFIG, read_json
from legato_engine.weights.expected import expected_shapes


def write(folder: Path, name: str) -> Path:
    """Writes the folder of a model in `runner/outlines`, in bfloat16."""
    folder.mkdir()
    shutil.copy(OUTLINES / name / CONFIG, folder)
    config = configs.from_huggingface(read_json(folder / CONFIG), name)
    header, end = dict[str, object](), 0
    for tensor, shape in expected_shapes(config).items():
        start, end = end, end + 2 * math.prod(shape)
        header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return folder
