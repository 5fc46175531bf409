"""Groups of layers with equal KV rules. Pure; without the protocol, which machines for kernels lack.

A block holds the KV of one group for `block_size` positions. The first group keeps all positions, even if its layers
have a window; each further one keeps the last positions of its *window* only. Method: vLLM's hybrid KV cache manager,
and Jenga (Zhang et al., 2025).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

MOST_GROUPS = 8  # if all layers have a window: more groups would keep less KV, but make tables of steps larger
MOST_UNUSED = Fraction(1, 6)  # share of the places for layers; with more, all layers form one group


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """The group of a layer, and its number within a block."""

    group: int
    place: int


@dataclass(frozen=True, slots=True)
class LayerGroups:
    """The place of each layer, the number of layers in a block, and the window of each group after the first."""

    places: tuple[LayerPlace, ...]
    per_block: int
    windows: tuple[int, ...] = ()


def group_layers(windows: Sequence[int | None]) -> LayerGroups:
    """Groups layers by their windows; None: the layer attends to all positions.

    All layers form one group, which keeps all positions, unless the layers with a window can be divided into groups of
    the first group's size with few unused places.
    """
    counts = Counter(windows := _with_first_group(windows))
    size = counts.pop(None, 0)
    if not size or not counts:
        return one_group(len(windows))
    of_groups = list[int | None]()
    for window, count in counts.items():
        of_groups += [window] * -(-count // size)
    unused = (1 + len(of_groups)) * size - len(windows)
    if unused > MOST_UNUSED * len(windows):
        return one_group(len(windows))
    first = {None: 0} | {window: 1 + of_groups.index(window) for window in counts}
    numbers, places = Counter[int | None](), list[LayerPlace]()
    for window in windows:
        group, place = divmod(numbers[window], size)
        places.append(LayerPlace(first[window] + group, place))
        numbers[window] += 1
    return LayerGroups(tuple(places), size, tuple([window for window in of_groups if window is not None]))


def _with_first_group(windows: Sequence[int | None]) -> Sequence[int | None]:
    """Puts some layers into the first group if all have a window: its blocks name a sequence's prefixes."""
    if None in windows or len(windows) < 2:
        return windows
    widest = max(window or 0 for window in windows)
    chosen = [layer for layer, window in enumerate(windows) if window == widest][: -(-len(windows) // MOST_GROUPS)]
    return [None if layer in chosen else window for layer, window in enumerate(windows)]


def one_group(layers: int) -> LayerGroups:
    """All layers in one group, which keeps all positions."""
    return LayerGroups(tuple(LayerPlace(0, layer) for layer in range(layers)), layers)


def first_block(window: int, position: int, block_size: int) -> int:
    """Number of the block with the first position that a token at `position` sees through the window."""
    return max(0, position - window + 1) // block_size
