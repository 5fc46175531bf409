"""The engine's lifecycles as Mermaid diagrams, and its compute paths and architectures as tables.

`python -m legato_engine.diagrams engine/legato_engine/transfer/README.md docs/engine-cpu.md docs/models.md`
rewrites them.
"""

import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TypeVar

from legato_engine.kernels import paths
from legato_engine.models import architectures
from legato_engine.scheduler.handoff.transfers import INCOMING_MOVES, OUTGOING_MOVES, IncomingState, OutgoingState
from legato_engine.transfer.session.events import Side
from legato_engine.transfer.session.lifecycle import TABLES, SessionState

StateT = TypeVar("StateT", bound=Enum)


def session_diagram(side: Side) -> str:
    """The side's table as a Mermaid state diagram: every transition that changes something."""
    lines = ["stateDiagram-v2", f"    [*] --> {SessionState.UNKNOWN.value}"]
    for (state, event), transition in TABLES[side].items():
        actions = ", ".join(action.value for action in transition.actions)
        if transition.state is not state or actions:
            effects = f" / {actions}" if actions else ""
            lines.append(f"    {state.value} --> {transition.state.value}: {event.value}{effects}")
    return "\n".join(lines)


def transfer_diagram(moves: Mapping[tuple[StateT, StateT], str], first: StateT) -> str:
    """The moves of a transfer's record as a Mermaid state diagram."""
    lines = [f"    {begin.value} --> {to.value}: {why}" for (begin, to), why in moves.items()]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {first.value}", *lines])


DIAGRAMS = {
    "The incoming transfer": transfer_diagram(INCOMING_MOVES, IncomingState.PENDING),
    "The outgoing transfer": transfer_diagram(OUTGOING_MOVES, OutgoingState.PENDING),
    "The sender": session_diagram("sender"),
    "The receiver": session_diagram("receiver"),
}


TABLES_OF_DOCS = {"Formats": "\n".join(paths.table()), "Architectures": "\n".join(architectures.table())}


def rewrite(page: str) -> str:
    """The page with the Mermaid block and the table under each heading of `DIAGRAMS` and `TABLES_OF_DOCS` generated."""
    for heading, diagram in DIAGRAMS.items():
        page = _replaced(page, heading, "```mermaid\n", diagram, "\n```")
    for heading, table in TABLES_OF_DOCS.items():
        page = _replaced(page, heading, "\n\n|", table.removeprefix("|"), "\n\n")
    return page


def _replaced(page: str, heading: str, opening: str, text: str, closing: str) -> str:
    """The page with `text` between the first `opening` under a heading and the `closing` after it."""
    head, mark, rest = page.partition(f"## {heading}\n")
    mark, rest = mark.removesuffix("\n"), "\n" + rest  # the block may follow immediately
    before, fence, block = rest.partition(opening)
    if not fence:
        return page
    _, end, after = block.partition(closing)
    return head + mark + before + fence + text + end + after


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(rewrite(Path(name).read_text()))
