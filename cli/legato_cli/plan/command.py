"""The `legato plan` subcommand."""

import argparse
import json
import os
import sys
from pathlib import Path

from tqdm import tqdm

from legato_cli.errors import CannotRun
from legato_cli.manifests import manifest_file
from legato_cli.plan import changes, profiles
from legato_engine.errors import UnusableProfile
from legato_operator.api import parsing, roles, yaml_text
from legato_operator.api.resources import Spec
from legato_operator.errors import ManifestError
from legato_simulator.planner import lockstep, window
from legato_simulator.planner.plan import PoolPlanner, ShapePlan
from legato_simulator.report import plan_text
from legato_simulator.simulator import ServiceSimulator
from legato_simulator.workload import traces

NO_SHAPE = 1  # exit code
BAD_INPUT = 2


def run(args: argparse.Namespace) -> int:
    """Searches, prints and writes files. Raises CannotRun; exit code 1: no shape meets the objectives."""
    try:
        content = yaml_text.load(manifest_file.read_text(args.file))
        service = parsing.read_mapping(content)
        _check_files(args)
        first, *others = profiles.read(service, args.profile)
        load = window.busiest(traces.read(args.trace), args.window)
        simulator = ServiceSimulator(service.spec, first, others=tuple(others), objectives=service.spec.slo)
        plan = _plan(args, PoolPlanner(simulator, load, args.gpus or _most_gpus(service.spec)))
        print(plan_text.text(plan))
        if args.json:
            args.json.write_text(json.dumps(plan_text.as_json(plan), indent=1) + "\n")
        if not plan.options or not plan.chosen.meets:
            return NO_SHAPE
        changed = changes.changes(service.spec, plan.chosen.shape.spec(service.spec))
        print("", changes.text({"spec": changed}) if changed else "The manifest has this shape.", sep="\n", end="")
        if args.output:
            _write(args, changes.merged(content, changed))
    except ManifestError as error:
        for path, message in error.problems:
            print(f"{args.file}: {path}: {message}" if path else f"{args.file}: {message}", file=sys.stderr)
        return BAD_INPUT
    except (UnusableProfile, traces.TraceError, window.UnusableTrace, OSError) as error:
        raise CannotRun(str(error)) from None
    return 0


def _check_files(args: argparse.Namespace) -> None:
    for path in (args.output, args.json):
        if path is not None and not path.absolute().parent.is_dir():
            raise CannotRun(f"cannot write {path}: there is no folder {path.absolute().parent}")


def _most_gpus(spec: Spec) -> int:
    """Returns the GPUs that the manifest allows: its budget, or both pools at their largest size."""
    most = sum(roles.bounds(spec, role).max * roles.ranks(spec, role) for role in roles.with_pool(spec))
    return spec.scaling.gpu_budget or most


def _plan(args: argparse.Namespace, planner: PoolPlanner) -> ShapePlan:
    with (
        tqdm(unit="simulation", file=sys.stderr, leave=False) as bar,
        lockstep.batches(planner.simulate, args.jobs or len(os.sched_getaffinity(0))) as batch,
    ):
        return planner.plan(batch, bar.update)


def _write(args: argparse.Namespace, manifest: dict[str, object]) -> None:
    """Writes the manifest. Relative paths still name the same files if it is written to another folder."""
    folder = Path.cwd() if str(args.file) == manifest_file.STANDARD_INPUT else args.file.absolute().parent
    if args.output.absolute().parent != folder:
        manifest = manifest_file.located(manifest, folder)
    args.output.write_text(changes.text(manifest), encoding="utf-8")
    print(f"\nwrote {args.output}")
