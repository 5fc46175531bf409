"""The entries of the work lists that attention's kernels for processors take their tasks from, all int64."""

import numpy as np

# Up to 32 lanes of a row that share a KV head; a lane is one query of one head.
_TILE = ("row", "token", "start", "lane", "lanes")  # `token` is the row's first, `start` its position

TILE = np.dtype([(name, np.int64) for name in _TILE])

# A tile, or one of `parts` that its positions `begin … end - 1` are divided into. `parts` is 0 where it is not divided;
# otherwise `slot` counts the lanes of all parts of the tiles before it.
PART = np.dtype([(name, np.int64) for name in (*_TILE, "begin", "end", "part", "parts", "slot")])
