"""Adapters of the Hugging Face hub, brought into the cache folder before workers on this machine are told of them: each
by a process of its own, which can be ended. On Kubernetes, containers that run before workers do the same."""

import os
from collections.abc import Sequence
from typing import Final

from legato_cli import hub, model
from legato_operator.api.model_spec import HubRepository
from legato_operator.api.resources import InferenceService
from legato_operator.local.logs import Logs
from legato_operator.local.process import Process
from legato_operator.manifests import adapters

SAYS: Final = "legato: "  # how `legato prepare` begins what it tells of its progress
REFUSES: Final = "legato prepare: "  # and why it failed


async def download(service: InferenceService, program: Sequence[str], progress: model.Progress) -> None:
    """Those of the service that are missing. `program` is the `legato` command; when this is cancelled, it is killed.
    Raises ModelUnavailable, which names an adapter by its field in the manifest."""
    for number, adapter in enumerate(service.spec.model.adapters):
        if (found := adapter.source.hugging_face) is not None:
            try:
                if not model.is_downloaded(found.repo, found.revision, hub.ADAPTER):
                    await _download(found, adapter.name, program, progress)
            except model.ModelUnavailable as error:
                path = f"spec.model.adapters.{number}.source.huggingFace"
                raise model.ModelUnavailable(f"{path}: {error}") from error


async def _download(found: HubRepository, name: str, program: Sequence[str], progress: model.Progress) -> None:
    def keep(_: str, line: str) -> None:
        if line.startswith(SAYS):
            progress(line.removeprefix(SAYS))

    logs = Logs(lambda _line: None, keep=keep)
    command = [*program, *adapters.download_arguments(name, found)]
    process = await Process.start(name, command, os.environ, (), logs)
    try:
        code, last = await process.wait()
    finally:
        process.kill()
        await process.wait()
    if code:
        raise model.ModelUnavailable(last.removeprefix(REFUSES) or f"`legato prepare` ended with code {code}")
