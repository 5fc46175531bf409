"""The manifest of `legato up MODEL`: a minimal one for a model named on the command line."""

import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from legato_cli.models import hub_model, model
from legato_cli.models.hub import Progress
from legato_operator.api.spec.scalars import LONGEST_SERVICE_NAME
from legato_protocol import names
from legato_protocol.model_files import gguf_parts


def of(
    text: str, progress: Progress, environ: Mapping[str, str] = os.environ, outlines: Path | None = None
) -> dict[str, Any]:
    """Returns the manifest for a built-in model, a GGUF file, a Hugging Face folder or a repository of the hub.

    A repository (OWNER/NAME, with a GGUF file's tag or name, at a commit or its newest one) is downloaded. If the empty
    folder `outlines` is given, the model is only outlined there. Raises ModelUnavailable.
    """
    local = _local(text, progress, environ)
    source, name, path = local or _of_hub(text, progress, outlines)
    _check(text, path)
    if local and path.is_dir() and not (file := path / "tokenizer.json").is_file():
        raise model.ModelUnavailable(f"model {text!r}: {file}: no such file; a model folder needs its tokenizer there")
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


def _check(text: str, path: Path) -> None:
    from legato_engine.errors import EngineError
    from legato_engine.weights.opening import open_weights

    try:
        open_weights(path)
    except EngineError as error:
        raise model.ModelUnavailable(f"model {text!r}: {error}") from None


def _local(text: str, progress: Progress, environ: Mapping[str, str]) -> tuple[dict[str, str], str, Path] | None:
    """Returns the source for a manifest, the name and the path of a model on this machine or in the installation."""
    path = Path(text).expanduser()
    if path.exists():
        resolved = path.resolve()
        return {"path": str(resolved)}, gguf_parts.model_name(resolved.name), resolved
    builtin = text.removeprefix(model.PREFIX)
    if builtin in [known.name for known in model.BUILTINS]:
        return {"builtin": builtin}, builtin, model.resolve(model.PREFIX + builtin, progress, environ)
    return None


def _of_hub(text: str, progress: Progress, outlines: Path | None) -> tuple[dict[str, str], str, Path]:
    """Returns the source for a manifest, the name and the path of a repository's model."""
    name = hub_model.parse(text)
    if name is None:
        known = ", ".join(known.name for known in model.BUILTINS)
        raise model.ModelUnavailable(
            f"model {text!r}: no such file or folder; allowed are a GGUF file, a folder with safetensors, a repository "
            f"of the Hugging Face hub as OWNER/NAME, OWNER/NAME:Q4_K_M, OWNER/NAME:FILE.gguf or OWNER/NAME@COMMIT, and "
            f"{known}"
        )
    try:
        if outlines is not None:
            path = hub_model.outline(name, outlines, progress)
        else:
            path = hub_model.fetch(name, progress, partial(_check, text))
    except model.ModelAway as error:
        raise model.ModelAway(f"{error}; there is no file or folder {text!r} here, either") from None
    served = gguf_parts.model_name(path.name) if path.is_file() else name.repo.rpartition("/")[2]
    return {"path": str(path)}, served, path
