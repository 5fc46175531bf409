"""Compares the tokens of a manifest's model and draft model, if both are on this machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from legato_operator.api.resources import InferenceService


def problems(service: "InferenceService", folder: Path) -> Iterator[tuple[str, str]]:
    """Yields path and message of a draft model that workers would refuse. `folder` is the manifest's."""
    from legato_operator.manifests import common

    draft = common.draft_source(service)
    if draft is None or draft.builtin == service.spec.model.source.builtin is not None:
        return
    from legato_cli.models import hub_content, model
    from legato_engine.errors import EngineError
    from legato_engine.runner.drafting.opening import open_draft
    from legato_engine.weights.opening import open_weights

    def resolve(argument: str) -> Path:
        named = argument.startswith((model.PREFIX, hub_content.PREFIX))
        return model.resolve(argument if named else str(folder / Path(argument).expanduser()), lambda _text: None)

    try:
        path, draft_path = resolve(common.model_argument(service)), resolve(common.draft_argument(draft))
    except model.ModelUnavailable:
        return  # workers report it, once files that are missing here should be there
    try:
        open_draft(draft_path, open_weights(path))
    except EngineError as error:
        yield "spec.engine.speculation.model", str(error)
