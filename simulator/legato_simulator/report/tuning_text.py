"""What a search of a manifest's bounds came to: as text, as JSON and as one HTML file."""

from collections.abc import Sequence
from html import escape
from typing import Any

from legato_protocol import durations
from legato_simulator.baselines.tuning import ATTAINMENT
from legato_simulator.manifest_tuning import Choice, ManifestTuning, Trial
from legato_simulator.report import report, scatter, table

NOTE = (
    "Bounds are a matter of budget, and these suit these workloads: simulate them on another day, too, before you rely "
    "on a small min or max."
)


def text(found: ManifestTuning) -> str:
    """The front as a table, and the lines to set."""
    return "\n\n".join((table.markdown(rows(found)), told(found), lines(found.best.choice), NOTE))


def rows(found: ManifestTuning) -> list[list[str]]:
    """The head, the manifest as written, and the front from cheap to good."""
    pools = [pool for pool, _, _ in found.trials[0].choice.bounds]
    head = ["", "good", "GPU-hours", *(f"{pool} min-max" for pool in pools), "scaleDownStabilization"]
    written = found.trials[0]
    shown = [written, *(trial for trial in found.front if trial is not written)]
    return [head, *(_row(found, trial) for trial in shown)]


def _row(found: ManifestTuning, trial: Trial) -> list[str]:
    marks = ["as written"] if trial is found.trials[0] else []
    marks += ["front"] if trial in found.front else []
    marks += ["chosen"] if trial is found.best else []
    sizes = [f"{least}-{most}" for _, least, most in trial.choice.bounds]
    return [", ".join(marks), f"{trial.attainment:.1%}", f"{trial.gpu_hours:.2f}", *sizes, _window(trial.choice)]


def told(found: ManifestTuning) -> str:
    """How many were tried, and whether one is good enough."""
    workloads = len(found.trials[0].results)
    of = f"on {workloads} workloads (the lowest attainment, all GPU-hours)" if workloads > 1 else "on this workload"
    tried = f"{len(found.trials)} choices tried {of}; the front are those that no other one beats."
    if found.best.attainment >= ATTAINMENT:
        return f"{tried} The chosen one reaches {ATTAINMENT:.0%} with the fewest GPU-hours:"
    return (
        f"{tried} None reaches {ATTAINMENT:.0%}: no max above the manifest's is tried, and objectives may be below "
        "what a worker can do. The best one:"
    )


def lines(choice: Choice) -> str:
    """As a manifest has them."""
    pools = [f"    {pool}: {{min: {least}, max: {most}}}" for pool, least, most in choice.bounds]
    return "\n".join(("spec:", "  scaling:", *pools, f"    scaleDownStabilization: {_window(choice)}"))


def as_json(found: ManifestTuning) -> dict[str, Any]:
    """All trials. Same input, same bytes."""
    front = found.front
    return {
        "attainment": ATTAINMENT,
        "chosen": _as_json(found.best),
        "trials": [{**_as_json(trial), "front": trial in front} for trial in found.trials],
    }


def _as_json(trial: Trial) -> dict[str, Any]:
    scaling: dict[str, Any] = {pool: {"min": least, "max": most} for pool, least, most in trial.choice.bounds}
    scaling["scaleDownStabilization"] = _window(trial.choice)
    by_workload = {result.workload: [result.attainment, result.gpu_hours] for result in trial.results}
    told = {"attainment": trial.attainment, "gpu_hours": trial.gpu_hours, "workloads": by_workload}
    return {"scaling": scaling, **told}


def html(found: ManifestTuning, title: str) -> str:
    """The page. Same search, same bytes."""
    head, *shown = rows(found)
    columns = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(_line(row) for row in shown)
    return report.page(
        title,
        f'<p>{escape(told(found))}</p><pre>{escape(lines(found.best.choice))}</pre><div class="wide"><table>'
        f"<thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table></div>{_plot(found)}<p>{escape(NOTE)}</p>",
    )


def _plot(found: ManifestTuning) -> str:
    """All trials; the front, what was written and what is chosen stand out."""
    kinds = [
        ("tried", "faint", found.trials, False),
        ("front: no other one beats it", "one", found.front, True),
        ("as written", "written", found.trials[:1], False),
        ("chosen", "chosen", (found.best,), False),
    ]
    return scatter.figure(
        "Attainment",
        f"% over GPU-hours; the line is {ATTAINMENT:.0%}",
        "Attainment and GPU-hours of every choice that was tried",
        [scatter.Points(label, look, _points(trials), joined) for label, look, trials, joined in kinds],
        100 * ATTAINMENT,
    )


def _points(trials: Sequence[Trial]) -> list[tuple[float, float, str]]:
    return [(trial.gpu_hours, 100 * trial.attainment, _about(trial)) for trial in trials]


def _about(trial: Trial) -> str:
    sizes = ", ".join(f"{pool} {least}-{most}" for pool, least, most in trial.choice.bounds)
    return f"{trial.attainment:.1%} for {trial.gpu_hours:.2f}: {sizes}, {_window(trial.choice)}"


def _line(row: Sequence[str]) -> str:
    cells = "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
    return f'<tr><th scope="row">{escape(row[0])}</th>{cells}</tr>'


def _window(choice: Choice) -> str:
    return durations.text(choice.window)
