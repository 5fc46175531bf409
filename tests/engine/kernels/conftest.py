"""Modules of tests/gpu are used here, too: what is computed there on GPUs is interpreted here."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "gpu"))
