"""Downloads adapters from the Hugging Face hub to the cache folder, before local workers load them.

Each download is a separate process, which can be killed. On Kubernetes, init containers do the same.
"""

import os
from collections.abc import Sequence
from typing import Final

from legato_cli.models import hub, hub_content, hub_model, model
from legato_operator.api.resources import InferenceService
from legato_operator.api.spec.model import HubRepository
from legato_operator.local.logs import Logs
from legato_operator.local.process import Process
from legato_operator.manifests.pods import adapters

SAYS: Final = "legato: "  # prefix of the progress that `legato prepare` prints
REFUSES: Final = "legato prepare: "  # prefix of its reason for a failure


async def download(service: InferenceService, program: Sequence[str], progress: hub.Progress) -> None:
    """Downloads the service's missing adapters. `program` is the `legato` command, which is killed on cancellation.

    Raises ModelUnavailable with the adapter's field in the manifest.
    """
    for number, adapter in enumerate(service.spec.model.adapters):
        if (repository := adapter.source.hugging_face) is not None:
            try:
                if not hub_model.is_downloaded(repository.repo, repository.revision, hub_content.ADAPTER):
                    await _download(repository, adapter.name, program, progress)
            except model.ModelUnavailable as error:
                path = f"spec.model.adapters.{number}.source.huggingFace"
                raise model.ModelUnavailable(f"{path}: {error}") from error


async def _download(repository: HubRepository, name: str, program: Sequence[str], progress: hub.Progress) -> None:
    def keep(_: str, line: str) -> None:
        if line.startswith(SAYS):
            progress(line.removeprefix(SAYS))

    logs = Logs(lambda _line: None, keep=keep)
    command = [*program, *adapters.download_arguments(name, repository)]
    process = await Process.start(name, command, os.environ, (), logs)
    try:
        code, last = await process.wait()
    finally:
        process.kill()
        await process.wait()
    if code:
        raise model.ModelUnavailable(last.removeprefix(REFUSES) or f"`legato prepare` ended with code {code}")
