"""`legato simulate --signals`: replays a recording, prints the result and writes files."""

import argparse
import json
import sys

from tqdm import tqdm

from legato_operator.api.resources import Spec
from legato_simulator.replay import recording, replay_report, replay_text
from legato_simulator.replay.replay import Replay, replay


def run(args: argparse.Namespace, spec: Spec) -> None:
    """Replays and prints. Raises RecordingError, UnusableReplay and OSError before anything is printed or written."""
    with tqdm(unit="round", unit_scale=True, file=sys.stderr, leave=False) as bar:
        result = replay(recording.rounds(args.signals), spec, bar.update)
    print(replay_text.text(result))
    _write(args, result)


def _write(args: argparse.Namespace, result: Replay) -> None:
    if args.json:
        args.json.write_text(json.dumps(replay_text.as_json(result), indent=1) + "\n")
    if args.html:
        args.html.write_text(replay_report.html(result, f"{args.file.stem}: replayed"))
