"""Finds the fewest GPUs of a layout that reach the attainment.

GPU counts are tried from an estimate upwards, each with several splits between the pools, and then those below the
first that suffices. With fewer GPUs than that, other chunks and `slo.tpot` are tried as well, and the sizes again with
those that help.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from legato_simulator.baselines.tuning import reaches
from legato_simulator.engine.result import Result
from legato_simulator.planner.estimates import Estimates
from legato_simulator.planner.lockstep import Search, ShapeTrial
from legato_simulator.planner.shape import PoolLayout, PoolShape

MOST_SPLITS = 5  # of one number of GPUs between the pools
MOST_USE = 1.1  # of a pool by the estimate, up to which a size is simulated
STRIDES = 6  # GPU counts are this share of the first one apart, at least 1
CLOSE = 0.8  # attainment from which other chunks may help a size that does not keep up by the estimate
MOST_CLOSE = 2  # sizes whose chunk and slo.tpot are varied
CHUNKS = (128, 256, 512, 1024, 2048, 4096, 8192)  # tokens
SHARES = (0.5, 0.7, 0.85)  # of the objective, for `slo.tpot`


@dataclass(frozen=True)
class SizeLimits:
    """The bounds of a search: most GPUs, and the shapes that the manifest's rules allow."""

    gpus: int
    allows: Callable[[PoolShape], bool]
    estimates: Estimates


@dataclass(frozen=True)
class Sized:
    """The shapes of a layout that were tried at the workload's rate, with their results."""

    layout: PoolLayout
    tried: dict[PoolShape, Result]

    @property
    def best(self) -> tuple[PoolShape, ...]:
        """The shapes with the fewest GPUs that reach the attainment, the best first; else the closest one."""
        enough = [shape for shape, result in self.tried.items() if reaches(result)]
        fewest = min((shape.gpus for shape in enough), default=0)
        ranked = sorted(self.tried, key=lambda shape: -self.tried[shape].attainment)  # stable: in the order tried
        return tuple(shape for shape in ranked if shape in enough and shape.gpus == fewest) or tuple(ranked[:1])

    @property
    def suffices(self) -> bool:
        """True if a shape reaches the attainment."""
        return any(map(reaches, self.tried.values()))


def search(layout: PoolLayout, base: PoolShape, limits: SizeLimits) -> Search[Sized]:
    """Tries sizes of a layout with the chunk and the `slo.tpot` of `base`, then with others."""
    sized = Sized(layout, {})
    yield from _size(sized, base, limits)
    if not sized.tried or limits.estimates.unmet(layout, largest_chunk(base)) is not None:
        return sized
    yield from _vary(sized, base.tpot, limits)
    best = sized.best[0]
    if sized.suffices and (best.chunk, best.tpot) != (base.chunk, base.tpot):
        yield from _size(sized, best, limits)  # still fewer may suffice
    return sized


def largest_chunk(base: PoolShape) -> int:
    """Returns the largest chunk that a search from `base` tries."""
    return max(base.chunk, *CHUNKS)


def _size(sized: Sized, base: PoolShape, limits: SizeLimits) -> Search[None]:
    """Tries sizes until one reaches the attainment; only the largest if none can with this chunk."""
    possible = [gpus for gpus in range(1, limits.gpus + 1) if next(_all_splits(sized.layout, gpus), None)]
    counts = list(_counts(sized.layout, possible, limits))
    hopeless = limits.estimates.unmet(sized.layout, base.chunk) is not None
    before = 0
    for gpus in counts[-1:] if hopeless else counts:
        shapes = _splits(sized.layout, base, gpus, limits)
        if (yield from _try(sized, shapes)):
            smaller = (_splits(sized.layout, base, each, limits) for each in possible if before < each < gpus)
            yield from _bisect(sized, list(filter(None, smaller)))
            break
        before = gpus if shapes else before


def _bisect(sized: Sized, sizes: Sequence[Sequence[PoolShape]]) -> Search[None]:
    """Tries numbers of GPUs below one that suffices, also below the estimate, which a short workload may not need.

    `sizes` are the shapes of each number, ascending.
    """
    while sizes:
        middle = len(sizes) // 2
        enough = yield from _try(sized, sizes[middle])
        sizes = sizes[:middle] if enough else sizes[middle + 1 :]


def variants(shape: PoolShape, objective: float) -> dict[str, list[PoolShape]]:
    """Returns shapes with other chunks, and with another `slo.tpot` below the objective."""
    chunks = [dataclasses.replace(shape, chunk=chunk) for chunk in CHUNKS if chunk != shape.chunk]
    tpots = [dataclasses.replace(shape, tpot=max(0.001, round(share * objective, 3))) for share in (*SHARES, 1.0)]
    return {"chunk": chunks, "tpot": [other for other in tpots if other.tpot != shape.tpot]}


def _try(sized: Sized, shapes: Sequence[PoolShape]) -> Search[bool]:
    """Simulates shapes at the workload's rate. Returns True if one reaches the attainment."""
    new = [shape for shape in shapes if shape not in sized.tried]
    results = yield [ShapeTrial(shape) for shape in new]
    sized.tried.update(zip(new, results, strict=True))
    return any(reaches(sized.tried[shape]) for shape in shapes)


def _vary(sized: Sized, objective: float, limits: SizeLimits) -> Search[None]:
    """Varies chunk and `slo.tpot` of the closest shapes with fewer GPUs than the best, or of those that miss.

    A shape that keeps up by the estimate may miss only because of its chunk, however far.
    """
    tried, use = sized.tried, limits.estimates.use
    most = sized.best[0].gpus - 1 if sized.suffices else limits.gpus
    close = [shape for shape in tried if tried[shape].attainment >= CLOSE or use(shape) <= MOST_USE]
    close = sorted(
        (shape for shape in close if shape.gpus <= most), key=lambda each: (-tried[each].attainment, use(each))
    )
    others = [other for shape in close[:MOST_CLOSE] for each in variants(shape, objective).values() for other in each]
    yield from _try(sized, [other for other in others if limits.allows(other)])


def _counts(layout: PoolLayout, possible: Sequence[int], limits: SizeLimits) -> Iterator[int]:
    """Yields numbers of GPUs to try, ascending, from the first that keeps up by the estimate."""
    base, use = PoolShape(layout, 0, 0, 1, 1.0), limits.estimates.use

    def keeps_up(gpus: int) -> bool:
        return any(use(base.with_workers(*split)) <= MOST_USE for split in _all_splits(layout, gpus))

    first, last = next(filter(keeps_up, possible), possible[-1] if possible else 0), 0
    for gpus in possible:
        if gpus >= first and (not last or gpus >= last + max(1, first // STRIDES) or gpus == possible[-1]):
            yield (last := gpus)


def _all_splits(layout: PoolLayout, gpus: int) -> Iterator[tuple[int, int]]:
    """Yields the workers of both pools that use exactly these GPUs."""
    if layout.unified:
        if gpus % layout.decode == 0:
            yield 0, gpus // layout.decode
        return
    for prefill in range(1, gpus // layout.prefill + 1):
        decode, rest = divmod(gpus - prefill * layout.prefill, layout.decode)
        if decode >= 1 and not rest:
            yield prefill, decode


def _splits(layout: PoolLayout, base: PoolShape, gpus: int, limits: SizeLimits) -> list[PoolShape]:
    """Returns splits that keep up by the estimate, evenly spread, or the least overloaded one."""
    made = [dataclasses.replace(base, layout=layout).with_workers(*split) for split in _all_splits(layout, gpus)]
    allowed = [shape for shape in made if limits.allows(shape)]
    use = limits.estimates.use
    enough = [shape for shape in allowed if use(shape) <= MOST_USE] or sorted(allowed, key=use)[:1]
    if len(enough) > MOST_SPLITS:
        enough = [enough[i * (len(enough) - 1) // (MOST_SPLITS - 1)] for i in range(MOST_SPLITS)]
    return enough
