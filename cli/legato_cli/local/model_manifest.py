"""The manifest of `legato up MODEL`: a minimal one for a model named on the command line."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from legato_cli.models import hub, hub_content, model
from legato_operator.api.spec.scalars import LONGEST_SERVICE_NAME
from legato_protocol import names

_REPOSITORY = re.compile(r"(hf:)?[\w.-]+/[\w.-]+(@[0-9a-f]{40})?")


def of(text: str, progress: hub.Progress, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Returns the manifest for a built-in model, a GGUF file, a Hugging Face folder or a repository of the hub.

    A repository (OWNER/NAME, at a commit or its newest one) is downloaded. Raises ModelUnavailable.
    """
    from legato_engine.errors import EngineError
    from legato_engine.weights.opening import open_weights

    source, name, path = _source(text, progress, environ)
    try:
        open_weights(path)
    except EngineError as error:
        raise model.ModelUnavailable(f"model {text!r}: {error}") from None
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.INFERENCE_SERVICE,
        "metadata": {"name": service_name(name)},
        "spec": {
            "model": {"source": source, "servedName": served_name(name)},
            "engine": {"kvCacheMemory": "Auto"},
            "scaling": {"prefill": {"max": 2}, "decode": {"max": 2}},
        },
    }


def service_name(name: str) -> str:
    """Returns a valid Kubernetes name for the model."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower())[:LONGEST_SERVICE_NAME].strip("-")
    return plain if plain[:1].isalpha() else f"m-{plain}"[:LONGEST_SERVICE_NAME].rstrip("-")


def served_name(name: str) -> str:
    """Returns the model's name for clients."""
    return re.sub(r"[^-A-Za-z0-9._]+", "-", name).lstrip("-._")[:200] or "model"


def _source(text: str, progress: hub.Progress, environ: Mapping[str, str]) -> tuple[dict[str, str], str, Path]:
    """Returns the model's source for a manifest, its name and its path."""
    path = Path(text).expanduser()
    if path.exists():
        resolved = path.resolve()
        return {"path": str(resolved)}, resolved.name.removesuffix(".gguf"), resolved
    builtin = text.removeprefix(model.PREFIX)
    if builtin in [known.name for known in model.BUILTINS]:
        return {"builtin": builtin}, builtin, model.resolve(model.PREFIX + builtin, progress, environ)
    if not _REPOSITORY.fullmatch(text):
        known = ", ".join(known.name for known in model.BUILTINS)
        raise model.ModelUnavailable(
            f"model {text!r}: no such file or folder; allowed are a GGUF file, a folder with safetensors, a repository "
            f"of the Hugging Face hub as OWNER/NAME or OWNER/NAME@COMMIT, and {known}"
        )
    repo, _, commit = text.removeprefix(hub_content.PREFIX).partition("@")
    folder = model.download(repo, commit, None, progress) if commit else model.download_newest(repo, progress)
    return {"path": str(folder)}, repo.rpartition("/")[2], folder
