"""The `legato simulate` subcommand."""

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Sequence

from tqdm import tqdm

from legato_cli.errors import CannotRun
from legato_cli.manifests import manifest_file, unmet_objectives
from legato_cli.simulate import replaying
from legato_engine.errors import UnusableProfile
from legato_engine.runner import profile
from legato_engine.runner.profile import Profile
from legato_operator.api import parsing, roles
from legato_operator.api.resources import Spec
from legato_operator.errors import ManifestError
from legato_simulator import manifest_tuning
from legato_simulator.baselines import BASELINES, comparison
from legato_simulator.baselines.comparison import Comparison, Entry
from legato_simulator.engine.fluid.telemetry import LengthCounts
from legato_simulator.replay.recording import RecordingError
from legato_simulator.replay.replay import UnusableReplay
from legato_simulator.report import report, table, tuning_text
from legato_simulator.simulator import ServiceSimulator
from legato_simulator.workload import synthetic, traces
from legato_simulator.workload.workload import Workload

BAD_INPUT = 2


def run(args: argparse.Namespace) -> int:
    """Simulates, prints and finally writes files. Raises CannotRun; exit code 2: the manifest cannot be used."""
    try:
        service = parsing.parse(manifest_file.read_text(args.file))
        _check_files(args)
        if args.signals:
            _check_replay(args)
            replaying.run(args, service.spec)
            return 0
        if args.profile is None:
            raise CannotRun("--profile is required (but for --signals)")
        worker = profile.find(args.profile)
        asked = _workloads(args)
        _check(args, service.spec, asked)
        simulator = ServiceSimulator(
            service.spec, worker, args.start, args.skip, engine=args.engine, handoff_rate=args.handoff_rate or math.inf
        )
        _warn(simulator, asked)
        _note_assumed(service.spec, worker)
        if args.tune:
            _tune(args, simulator, asked)
            return 0
        results = _simulate(args, simulator, asked)
        print(table.comparison_table(results))
        for workload in asked:
            print("", f"{workload.name}: {table.about(workload, service.spec, worker)}", sep="\n")
            print(table.timeline(results.entries_of(workload.name)[0].result))
        _write(args, results)
    except ManifestError as error:
        for path, message in error.problems:
            print(f"{args.file}: {path}: {message}" if path else f"{args.file}: {message}", file=sys.stderr)
        return BAD_INPUT
    except (UnusableProfile, UnusableReplay, RecordingError, traces.TraceError, OSError) as error:
        raise CannotRun(str(error)) from None
    return 0


def _workloads(args: argparse.Namespace) -> list[Workload]:
    """Returns the requested workloads, with unique names. Raises TraceError and CannotRun."""
    read = [traces.read(path) for path in args.trace]
    traffic = synthetic.SyntheticTraffic(args.rate, args.input_tokens, args.output_tokens, args.duration)
    asked: list[Workload] = []
    for name in args.workload or (["trace"] if read else []):
        if name in synthetic.PHASES:
            asked.append(synthetic.named(name, args.seed, traffic, None))
        elif not read:
            raise CannotRun(f"--workload {name} needs --trace FILE")
        asked += [synthetic.named(name, args.seed, traffic, trace) for trace in read if name not in synthetic.PHASES]
    if not asked:
        raise CannotRun("nothing to simulate: give --trace FILE or --workload NAME")
    if len({workload.name for workload in asked}) < len(asked):
        raise CannotRun("two workloads of the same name: each --trace needs another file name")
    return asked


def _check_files(args: argparse.Namespace) -> None:
    for path in (args.json, args.html):
        if path is not None and not path.absolute().parent.is_dir():
            raise CannotRun(f"cannot write {path}: there is no folder {path.absolute().parent}")


def _check_replay(args: argparse.Namespace) -> None:
    """Raises CannotRun for flags of workloads and profiles, which a replay does not have."""
    names = ("trace", "workload", "scaler", "compare", "elsewhere", "tune", "profile", "start", "skip", "handoff_rate")
    given = {"--" + name.replace("_", "-"): getattr(args, name) for name in names}
    if unused := [name for name, value in given.items() if value]:
        raise CannotRun(f"{', '.join(unused)} cannot be used with --signals, which replays a recording")


def _check(args: argparse.Namespace, spec: Spec, asked: Sequence[Workload]) -> None:
    """Raises CannotRun if the simulation would have no result."""
    for workload in asked:
        if not workload.arrivals:
            raise CannotRun(f"{workload.name} has no requests")
        if workload.arrivals[-1].at < args.skip:
            raise CannotRun(f"no request of {workload.name} counts: it ends within --skip")
    if not spec.disaggregated and (args.compare or args.scaler):
        raise CannotRun("--scaler and --compare need a manifest with a prefill pool")


def _warn(simulator: ServiceSimulator, asked: Sequence[Workload]) -> None:
    """Warns about objectives that cannot be met with any number of workers."""
    warnings: dict[str, str] = {}
    for workload in asked:
        prompts = LengthCounts()
        for tokens in simulator.search_context(workload).uncached:
            prompts.add(tokens)
        for text in unmet_objectives.by_profile(simulator.spec, simulator.profile, prompts.lengths()).values():
            warnings.setdefault(text, workload.name)
    for text, name in warnings.items():
        print(f"legato simulate: warning: {name}: {text}", file=sys.stderr)


def _note_assumed(spec: Spec, worker: Profile) -> None:
    for pool in roles.with_pool(spec):
        if (ranks := roles.ranks(spec, pool)) != worker.tensor:
            text = f"spec.{pool}.parallelism.tensor is {ranks}, the profile's {worker.tensor}: its times are assumed"
            print(f"legato simulate: {text}, not measured", file=sys.stderr)


def _tune(args: argparse.Namespace, simulator: ServiceSimulator, asked: Sequence[Workload]) -> None:
    if args.scaler or args.compare or args.elsewhere:
        raise CannotRun("--tune searches the manifest's own fields: leave out --scaler and --compare")
    if simulator.spec.scaling.mode == "Fixed":
        raise CannotRun("spec.scaling.mode is Fixed: there are no bounds to tune (use Managed)")
    with tqdm(unit="result", file=sys.stderr, leave=False) as bar:
        tuning = manifest_tuning.tune(
            simulator.spec,
            lambda spec: dataclasses.replace(simulator, spec=spec),
            asked,
            args.jobs,
            bar.update,
        )
    print(tuning_text.text(tuning))
    if args.json:
        args.json.write_text(json.dumps(tuning_text.as_json(tuning), indent=1) + "\n")
    if args.html:
        args.html.write_text(tuning_text.html(tuning, f"{args.file.stem}: tuned"))


def _simulate(args: argparse.Namespace, simulator: ServiceSimulator, asked: Sequence[Workload]) -> Comparison:
    chosen = tuple(BASELINES) if args.compare else tuple(dict.fromkeys(args.scaler))
    if chosen:
        return _compare(args, simulator, asked, chosen)
    seconds = sum(workload.arrivals[-1].at for workload in asked)
    with tqdm(total=round(seconds), unit="s", unit_scale=True, file=sys.stderr, leave=False) as bar:
        shown = dataclasses.replace(simulator, progress=bar.update)
        return comparison.compare(shown, asked, ())


def _compare(
    args: argparse.Namespace, simulator: ServiceSimulator, asked: Sequence[Workload], chosen: tuple[str, ...]
) -> Comparison:
    elsewhere = chosen if args.elsewhere and len(asked) > 1 else ()
    runs = len(asked) * (1 + len(chosen) + len(elsewhere))
    with tqdm(total=runs, unit="result", file=sys.stderr, leave=False) as bar:

        def made(entry: Entry) -> None:
            bar.set_postfix_str(f"{entry.result.workload}, {entry.name}")
            bar.update()

        return comparison.compare(simulator, asked, chosen, elsewhere, args.jobs, made)


def _write(args: argparse.Namespace, results: Comparison) -> None:
    if args.json:
        args.json.write_text(json.dumps({"results": comparison.as_json(results)}, indent=1) + "\n")
    if args.html:
        title = f"{args.file.stem}: simulated"
        args.html.write_text(report.html(results, title))
