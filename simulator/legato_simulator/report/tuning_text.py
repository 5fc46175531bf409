"""The result of tuning a manifest's bounds, as text, JSON and an HTML file."""

from collections.abc import Sequence
from html import escape
from typing import Any

from legato_protocol.settings import durations
from legato_simulator.baselines.tuning import ATTAINMENT
from legato_simulator.manifest_tuning import Choice, ManifestTuning, Trial
from legato_simulator.report import report, scatter, table

NOTE = (
    "Bounds are a matter of budget, and these suit these workloads: simulate them on another day, too, before you rely "
    "on a small min or max."
)


def text(tuning: ManifestTuning) -> str:
    """Returns the front as a table, and the manifest lines to set."""
    return "\n\n".join((table.markdown(rows(tuning)), summary(tuning), lines(tuning.best.choice), NOTE))


def rows(tuning: ManifestTuning) -> list[list[str]]:
    """Returns the table's header, the manifest as written, and the front in order of GPU-hours."""
    pools = [pool for pool, _, _ in tuning.trials[0].choice.bounds]
    head = ["", "good", "GPU-hours", *(f"{pool} min-max" for pool in pools), "scaleDownStabilization"]
    written = tuning.trials[0]
    shown = [written, *(trial for trial in tuning.front if trial is not written)]
    return [head, *(_row(tuning, trial) for trial in shown)]


def _row(tuning: ManifestTuning, trial: Trial) -> list[str]:
    marks = ["as written"] if trial is tuning.trials[0] else []
    marks += ["front"] if trial in tuning.front else []
    marks += ["chosen"] if trial is tuning.best else []
    sizes = [f"{least}-{most}" for _, least, most in trial.choice.bounds]
    return [", ".join(marks), f"{trial.attainment:.1%}", f"{trial.gpu_hours:.2f}", *sizes, _window(trial.choice)]


def summary(tuning: ManifestTuning) -> str:
    """Returns a sentence with the number of choices tried and whether one reaches the attainment."""
    workloads = len(tuning.trials[0].results)
    of = f"on {workloads} workloads (the lowest attainment, all GPU-hours)" if workloads > 1 else "on this workload"
    tried = f"{len(tuning.trials)} choices tried {of}; the front are those that no other one beats."
    if tuning.best.attainment >= ATTAINMENT:
        return f"{tried} The chosen one reaches {ATTAINMENT:.0%} with the fewest GPU-hours:"
    return (
        f"{tried} None reaches {ATTAINMENT:.0%}: no max above the manifest's is tried, and objectives may be below "
        "what a worker can do. The best one:"
    )


def lines(choice: Choice) -> str:
    """Returns a choice as manifest lines."""
    pools = [f"    {pool}: {{min: {least}, max: {most}}}" for pool, least, most in choice.bounds]
    return "\n".join(("spec:", "  scaling:", *pools, f"    scaleDownStabilization: {_window(choice)}"))


def as_json(tuning: ManifestTuning) -> dict[str, Any]:
    """Returns all trials. Deterministic."""
    front = tuning.front
    return {
        "attainment": ATTAINMENT,
        "chosen": _as_json(tuning.best),
        "trials": [{**_as_json(trial), "front": trial in front} for trial in tuning.trials],
    }


def _as_json(trial: Trial) -> dict[str, Any]:
    scaling: dict[str, Any] = {pool: {"min": least, "max": most} for pool, least, most in trial.choice.bounds}
    scaling["scaleDownStabilization"] = _window(trial.choice)
    by_workload = {result.workload: [result.attainment, result.gpu_hours] for result in trial.results}
    figures = {"attainment": trial.attainment, "gpu_hours": trial.gpu_hours, "workloads": by_workload}
    return {"scaling": scaling, **figures}


def html(tuning: ManifestTuning, title: str) -> str:
    """Returns the page. Deterministic for a search."""
    head, *shown = rows(tuning)
    choices = report.table(map(escape, head), [[*map(escape, row)] for row in shown])
    return report.page(
        title,
        f"<p>{escape(summary(tuning))}</p><pre>{escape(lines(tuning.best.choice))}</pre>{choices}{_plot(tuning)}"
        f"<p>{escape(NOTE)}</p>",
    )


def _plot(tuning: ManifestTuning) -> str:
    """Plots all trials, and highlights the front, the manifest as written and the chosen one."""
    kinds = [
        ("tried", "faint", tuning.trials, False),
        ("front: no other one beats it", "one", tuning.front, True),
        ("as written", "written", tuning.trials[:1], False),
        ("chosen", "chosen", (tuning.best,), False),
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


def _window(choice: Choice) -> str:
    return durations.text(choice.window)
