"""The table of `comparison.py`, and the aims that were missed. The worst seed counts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_hour_parts import FORESEEN, PARTS, STARTING

ATTAINMENT, BEST, SHIFTED, ELSEWHERE, REVERSALS = 0.95, 1.10, 0.85, 0.80, 1.0
SHIFTS = ("mix-shift", "decode-shift", "hit-rate-shift")
BOUNDS = ("legato", "reactive", "clairvoyant", "request-rate-elsewhere")  # not tuned baselines
COLUMNS = (
    *("workload", "start", "good", "GPU-hours", "reversals/h", "best tuned baseline", "× best", "× request rate"),
    *("× request rate tuned elsewhere", "× clairvoyant", "reactive bound"),
)


@dataclass(frozen=True)
class Run:
    """One scaler on one workload."""

    workload: str
    start: float  # seconds
    seed: int
    scaler: str
    attainment: float
    gpu_hours: float
    reversals: Mapping[str, float]  # an hour, by pool
    prefill: float  # settings, where it has some
    decode: float
    runs: int  # simulations, tuning included
    parts: Mapping[str, float] = field(default_factory=dict)  # GPU-hours by what they were for, of Legato


class Seeds:
    """All runs of one workload with one start time, by scaler and seed."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.workload, self.start = runs[0].workload, runs[0].start
        self._by_seed: dict[int, dict[str, Run]] = {}
        for run in runs:
            self._by_seed.setdefault(run.seed, {})[run.scaler] = run

    def of(self, scaler: str) -> list[Run]:
        """One for each seed that was simulated."""
        return [runs[scaler] for _, runs in sorted(self._by_seed.items()) if scaler in runs]

    def best(self) -> list[Run]:
        """Returns, for each seed, the baseline with the fewest GPU-hours that reaches the attainment."""
        best = []
        for _, runs in sorted(self._by_seed.items()):
            reaching = [r for r in runs.values() if r.scaler not in BOUNDS and r.attainment >= ATTAINMENT]
            if reaching:
                best.append(min(reaching, key=lambda run: run.gpu_hours))
        return best

    def times(self, others: Sequence[Run]) -> list[float]:
        """Legato's GPU-hours ÷ theirs, by seed."""
        return [self._by_seed[other.seed]["legato"].gpu_hours / other.gpu_hours for other in others]

    def baselines(self) -> bool:
        """True if any baseline was tuned."""
        return any(scaler not in BOUNDS for runs in self._by_seed.values() for scaler in runs)


def text(runs: Sequence[Run]) -> str:
    """A row for each workload and start time, and then all misses."""
    keys = dict.fromkeys((run.workload, run.start) for run in sorted(runs, key=lambda r: (r.workload, r.start)))
    groups = [Seeds([run for run in runs if (run.workload, run.start) == key]) for key in keys]
    groups = [group for group in groups if group.of("legato")]
    rows = [COLUMNS, ["---"] * len(COLUMNS), *map(_row, groups)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    misses = [f"- {miss}" for group in groups for miss in _missed(group)]
    count = sum(run.runs for run in runs)
    missed = ("\nMissed:" if misses else "\nNothing missed.", *misses)
    return "\n".join((table, f"\n{count} simulations.", *_parts(groups), *missed))


def _parts(groups: Sequence[Seeds]) -> Iterator[str]:
    """Returns the purposes of Legato's GPU-hours, for the first seed."""
    runs = [run for group in groups for run in group.of("legato")[:1] if run.parts]
    if not runs:
        return
    head = ("workload", "start", "GPU-hours", *PARTS, f"of all: {STARTING}", FORESEEN)
    yield "\nGPU-hours by what they were for, of the first seed:\n"
    for row in (head, ["---"] * len(head), *map(_parts_row, runs)):
        yield f"| {' | '.join(row)} |"


def _parts_row(run: Run) -> list[str]:
    hours = [run.gpu_hours, *(run.parts[part] for part in (*PARTS, STARTING, FORESEEN))]
    return [run.workload, f"{run.start:.0f} s", *(f"{each:.2f}" for each in hours)]


def _row(group: Seeds) -> list[str]:
    legato, best = group.of("legato"), group.best()
    named = ", ".join(dict.fromkeys(run.scaler for run in best))
    pools = sorted(legato[0].reversals)
    return [
        group.workload,
        f"{group.start:.0f} s",
        _span([run.attainment for run in legato], "{:.1%}"),
        _span([run.gpu_hours for run in legato], "{:.2f}"),
        ", ".join(_span([run.reversals[pool] for run in legato], f"{pool} {{:.1f}}") for pool in pools),
        named or ("none reaches 95 %" if group.baselines() else "–"),
        _span(group.times(best), "{:.2f}"),
        _ratio(group, "request-rate"),
        _ratio(group, "request-rate-elsewhere"),
        _ratio(group, "clairvoyant"),
        _span([run.attainment for run in group.of("reactive")], "{:.1%}"),
    ]


def _ratio(group: Seeds, scaler: str) -> str:
    others = group.of(scaler)
    missing = [run.attainment for run in others if run.attainment < ATTAINMENT]
    ratio = _span(group.times(others), "{:.2f}")
    return f"{ratio} (it: {_span(missing, '{:.0%}')})" if missing else ratio


def _span(values: Sequence[float], form: str) -> str:
    """Formats the smallest and the largest value over all seeds, if they differ as printed."""
    ends = dict.fromkeys(form.format(value) for value in (min(values), max(values))) if values else ["–"]
    return " to ".join(ends)


def _missed(group: Seeds) -> Iterator[str]:
    where, legato = f"{group.workload}, start {group.start:.0f} s", group.of("legato")
    if (worst := min(run.attainment for run in legato)) < ATTAINMENT:
        bound = _span([run.attainment for run in group.of("reactive")], "{:.1%}")
        yield f"{where}: {worst:.2%} of the requests were good, not {ATTAINMENT:.0%} (reactive bound: {bound})"
    yield from _dearer(group, group.best(), BEST, f"{where}: {{}} times the GPU-hours of the best tuned baseline")
    if group.workload in SHIFTS:
        tuned = group.of("request-rate")
        yield from _dearer(group, tuned, SHIFTED, f"{where}: {{}} times the GPU-hours of tuned request rates")
    elsewhere = [run for run in group.of("request-rate-elsewhere") if run.attainment >= ATTAINMENT]
    text = f"{where}: {{}} times the GPU-hours of request rates tuned elsewhere"
    yield from _dearer(group, elsewhere, ELSEWHERE, text)
    for pool in legato[0].reversals:
        if (most := max(run.reversals[pool] for run in legato)) > REVERSALS:
            yield f"{where}: {most:.1f} reversals an hour of {pool}"


def _dearer(group: Seeds, others: Sequence[Run], most: float, text: str) -> Iterator[str]:
    if others and (worst := max(group.times(others))) > most:
        yield f"{text.format(f'{worst:.2f}')}, not {most:.2f}"
