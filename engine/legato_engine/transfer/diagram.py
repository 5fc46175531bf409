"""The session tables as Mermaid diagrams; `python -m legato_engine.transfer.diagram docs/handoff.md` rewrites them."""

import sys
from pathlib import Path

from legato_engine.transfer.events import Side
from legato_engine.transfer.session import TABLES, SessionState


def diagram(side: Side) -> str:
    """The side's table as a Mermaid state diagram: every transition that changes something."""
    lines = ["stateDiagram-v2", f"    [*] --> {SessionState.UNKNOWN.value}"]
    for (state, event), transition in TABLES[side].items():
        actions = ", ".join(action.value for action in transition.actions)
        if transition.state is not state or actions:
            effects = f" / {actions}" if actions else ""
            lines.append(f"    {state.value} --> {transition.state.value}: {event.value}{effects}")
    return "\n".join(lines)


def rewrite(page: str) -> str:
    """The page with the Mermaid block under each "The sender"/"The receiver" heading generated anew."""
    for side in TABLES:
        head, mark, rest = page.partition(f"## The {side}\n")
        before, fence, block = rest.partition("```mermaid\n")
        _, end, after = block.partition("\n```")
        page = head + mark + before + fence + diagram(side) + end + after
    return page


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(rewrite(Path(name).read_text()))
