"""Runs mutmut over some packages, each in a copy of the repository of its own under `build/mutation`.

mutmut names a mutant after the path of its file and expects to import it under that name, so the copy has the packages
side by side at its root instead of in their source roots.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "mutation"
SOURCE_ROOTS = ("protocol", "engine", "gateway", "operator", "simulator", "cli")


@dataclass(frozen=True, slots=True)
class Mutated:
    """Globs of the modules to mutate, and the quick tests that must fail then: no processes, no sockets."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


TARGETS = {
    "scheduler": Mutated(("legato_engine/scheduler/*",), ("tests/engine/scheduler",)),
    "kvcache": Mutated(("legato_engine/kvcache/*",), ("tests/engine/kvcache", "tests/engine/scheduler")),
    "transfer": Mutated(
        tuple(
            f"legato_engine/transfer/{place}"  # a star stands for folders, too
            for place in ("agent.py", "choice.py", "link.py", "blocks/*", "connections/*", "session/*")
        ),
        (
            "tests/engine/transfer",
            "tests/engine/core/test_handoff_link.py",
            "--ignore=tests/engine/transfer/ucx",
            "--ignore=tests/engine/transfer/test_schedules.py",
            "-k",
            "(not TCP and not SharedMemory and not links_own) or handoff_link",
        ),
    ),
    "relay": Mutated(
        ("legato_gateway/relay/*",),
        (
            "tests/gateway/relay",
            "--ignore=tests/gateway/relay/test_relay.py",
            "--deselect=tests/gateway/relay/test_lifecycle.py::test_the_readme_has_the_diagram_of_the_table_and_the_docs_"
            "explain_every_stage",
        ),
    ),
    "admission": Mutated(("legato_gateway/admission/*",), ("tests/gateway/admission",)),
    "kv_index": Mutated(
        tuple(f"legato_gateway/routing/{name}.py" for name in ("kv_index", "indexed_worker", "prefix_run")),
        ("tests/gateway/routing",),
    ),
    "rollout": Mutated(
        ("legato_operator/planning/rollout/rolling_update.py",),
        ("tests/operator/planning/rollout/test_rolling_update.py",),
    ),
    "pool_plan": Mutated(
        ("legato_operator/planning/pools/pool_plan.py",),
        tuple(
            f"tests/operator/planning/{name}.py"
            for name in ("pools/test_pool_plan", "test_plan", "test_plan_kubernetes")
        ),
    ),
}

# Failing examples need not be made small, and the same ones have to come every time.
PLUGIN = """\
from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "mutation",
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("mutation")
"""

CONFIGURATION = """\
[tool.pytest.ini_options]
addopts = "--import-mode=importlib --strict-markers -p no:cacheprovider -p no:xdist -p mutation_profile"
pythonpath = [".", "tests/support"]
timeout = 600
markers = ["gpu: needs an accelerator; skipped without one"]

[tool.mutmut]
source_paths = [{package!r}]
only_mutate = {modules!r}
pytest_add_cli_args_test_selection = {tests!r}
also_copy = {others!r}
# Messages' wording, and asserts, which are the tests' own.
do_not_mutate_patterns = ['^\\s*raise ', '^\\s*assert ', '^\\s*f?"[^"]*"[,)]*$', '_log\\.']
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="How many small faults put into the code the tests find.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"{', '.join(TARGETS)}; all unless given")
    parser.add_argument(
        "--sample", metavar="DIGITS", default="", help="only mutants whose number ends with one of these"
    )
    parser.add_argument("--jobs", metavar="COUNT", type=int, default=os.cpu_count() or 1, help="mutants at a time")
    args = parser.parse_args()
    if unknown := set(args.targets) - TARGETS.keys():
        parser.error(f"not a target: {', '.join(sorted(unknown))} ({', '.join(TARGETS)})")
    for name in args.targets or TARGETS:
        folder = stage(name, TARGETS[name])
        run(folder, args.sample, args.jobs)
        report(name, folder)
    return 0


def stage(name: str, target: Mutated) -> Path:
    """A copy of the repository for one target."""
    folder = BUILD / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ignored = shutil.ignore_patterns("__pycache__")
    for source_root in SOURCE_ROOTS:
        package = f"legato_{source_root}"
        shutil.copytree(ROOT / source_root / package, folder / package, ignore=ignored)
    for other in ("tests", "examples", "docs", "crds", "charts"):
        shutil.copytree(ROOT / other, folder / other, ignore=ignored)
    package = target.modules[0].split("/")[0]
    others = [path.name for path in folder.iterdir() if path.name not in (package, "tests")]
    (folder / "mutation_profile.py").write_text(PLUGIN)
    (folder / "pyproject.toml").write_text(
        CONFIGURATION.format(
            package=package,
            modules=list(target.modules),
            tests=list(target.tests),
            others=[*others, "mutation_profile.py"],
        )
    )
    return folder


def run(folder: Path, sample: str, jobs: int) -> None:
    """Tries the mutants; survivors are no failure."""
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(jobs)]
    if sample:
        command += [f"*__mutmut_[{sample}]", f"*__mutmut_*[{sample}]"]
    subprocess.run(command, cwd=folder, check=False)


def report(name: str, folder: Path) -> None:
    """Prints the score and writes the survivors. Mutants that no test reaches survive; those that never end do not."""
    killed, survived = 0, []
    for meta in sorted((folder / "mutants").rglob("*.meta")):
        for mutant, status in json.loads(meta.read_text())["exit_code_by_key"].items():
            if status in (0, 5, 33):  # all tests passed, or none reaches it
                survived.append(mutant)
            elif status is not None:  # not tried: outside of the sample
                killed += 1
    (folder / "survivors.txt").write_text("".join(f"{mutant}\n" for mutant in survived))
    tried = killed + len(survived)
    print(f"\n{name}: {killed} of {tried} killed ({killed / max(tried, 1):.0%}); survivors: {folder / 'survivors.txt'}")


if __name__ == "__main__":
    raise SystemExit(main())
