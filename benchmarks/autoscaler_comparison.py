"""How Legato's autoscaler compares with tuned ones, from what `legato simulate --compare --json` wrote.

    .venv/bin/python benchmarks/autoscaler_comparison.py out.json [more.json]

Prints a row for each workload, and then every aim that was missed: attainment of 95 %, GPU-hours of at most 1.10 times
those of the best tuned rival, 0.85 times those of tuned request rates where the mix shifts, 0.80 times those of request
rates tuned on another workload unless these miss 95 %, and one reversal an hour and pool.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ATTAINMENT, BEST, SHIFTED, ELSEWHERE, REVERSALS = 0.95, 1.10, 0.85, 0.80, 1.0
SHIFTS = ("mix-shift", "decode-shift", "hit-rate-shift")
COLUMNS = (
    *("workload", "Legato", "reversals/h", "best tuned rival", "× best", "× request rate"),
    *("× request rate, tuned elsewhere", "× clairvoyant"),
)

Entry = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    entries = [entry for path in parser.parse_args().files for entry in json.loads(path.read_text())["results"]]
    workloads = [
        [e for e in entries if e["workload"] == name] for name in dict.fromkeys(e["workload"] for e in entries)
    ]
    for row in (COLUMNS, ["---"] * len(COLUMNS), *map(_row, workloads)):
        print(f"| {' | '.join(row)} |")
    missed = [text for found in workloads for text in _missed(found)]
    print("\nMissed:\n" + "\n".join(f"- {text}" for text in missed) if missed else "\nNothing missed.")


def _row(found: Sequence[Entry]) -> list[str]:
    legato, best = _one(found, "legato"), _best(found)
    assert legato
    others = (
        best,
        _one(found, "request-rate"),
        _one(found, "request-rate", elsewhere=True),
        _one(found, "clairvoyant"),
    )
    reversals = ", ".join(f"{pool} {count:.1f}" for pool, count in sorted(legato["reversals"].items()))
    named = f"{best['scaler']}, {_told(best)}" if best else "none reaches 95 %"
    return [legato["workload"], _told(legato), reversals, named, *(_times(legato, other) for other in others)]


def _missed(found: Sequence[Entry]) -> Iterator[str]:
    legato = _one(found, "legato")
    assert legato
    name = legato["workload"]
    if legato["attainment"] < ATTAINMENT:
        yield f"{name}: {legato['attainment']:.1%} of the requests were good, not {ATTAINMENT:.0%}"
    yield from _dearer(legato, _best(found), BEST, "the best tuned rival")
    if name in SHIFTS:
        yield from _dearer(legato, _one(found, "request-rate"), SHIFTED, "tuned request rates")
    elsewhere = _one(found, "request-rate", elsewhere=True)
    if elsewhere and elsewhere["attainment"] >= ATTAINMENT:
        yield from _dearer(legato, elsewhere, ELSEWHERE, "request rates tuned elsewhere")
    for pool, count in legato["reversals"].items():
        if count > REVERSALS:
            yield f"{name}: {count:.1f} reversals an hour of {pool}"


def _dearer(legato: Entry, other: Entry | None, most: float, who: str) -> Iterator[str]:
    if other and legato["gpu_hours"] > most * other["gpu_hours"]:
        yield f"{legato['workload']}: {_times(legato, other)} the GPU-hours of {who}, not {most:.2f}"


def _one(found: Sequence[Entry], scaler: str, elsewhere: bool = False) -> Entry | None:
    named = (e for e in found if e["scaler"] == scaler and elsewhere == (e["tuned_on"] not in ("", e["workload"])))
    return next(named, None)


def _best(found: Sequence[Entry]) -> Entry | None:
    """The ratio that the simulator gave is to this one."""
    return next(
        (e for e in found if e["ratio"] == 1.0 and e["scaler"] != "legato" and e["tuned_on"] == e["workload"]), None
    )


def _told(entry: Entry) -> str:
    return f"{entry['attainment']:.1%}, {entry['gpu_hours']:.2f} h"


def _times(legato: Entry, other: Entry | None) -> str:
    if not other:
        return "–"
    miss = "" if other["attainment"] >= ATTAINMENT else f" (it: {other['attainment']:.0%})"
    return f"{legato['gpu_hours'] / other['gpu_hours']:.2f}{miss}"


if __name__ == "__main__":
    main()
