"""Downloads adapters and the draft model from the Hugging Face hub to the cache folder, before local workers load them.

Each download is a separate process, which can be killed. On Kubernetes, init containers do the same.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from legato_cli.models import hub, hub_content, hub_model, model
from legato_cli.models.hub_content import HubContent
from legato_operator.api.resources import InferenceService
from legato_operator.api.spec.model import HubRepository
from legato_operator.local.logs import Logs
from legato_operator.local.process import Process
from legato_operator.manifests import common
from legato_operator.manifests.pods import adapters
from legato_operator.manifests.pods import model as model_files

SAYS: Final = "legato: "  # prefix of the progress that `legato prepare` prints
REFUSES: Final = "legato prepare: "  # prefix of its reason for a failure


class _Wanted(NamedTuple):
    """A repository that a field of the manifest names, the part of it to download, and the arguments of `legato`."""

    path: str
    name: str
    repository: HubRepository
    content: HubContent
    arguments: list[str]


async def download(service: InferenceService, program: Sequence[str], progress: hub.Progress) -> None:
    """Downloads the service's missing adapters and its draft model. `program` is the `legato` command, which is killed
    on cancellation.

    Raises ModelUnavailable with the field in the manifest.
    """
    for each in _wanted(service):
        try:
            if not hub_model.is_downloaded(each.repository.repo, each.repository.revision, each.content):
                await _download(each, program, progress)
        except model.ModelUnavailable as error:
            raise model.ModelUnavailable(f"{each.path}: {error}") from error


def _wanted(service: InferenceService) -> Iterator[_Wanted]:
    draft = common.draft_source(service)
    if draft is not None and (repository := draft.hugging_face) is not None:
        content = hub_content.gguf(repository.file) if repository.file else hub_content.MODEL
        arguments = model_files.draft_arguments(repository)
        yield _Wanted("spec.engine.speculation.model.huggingFace", "draft", repository, content, arguments)
    for number, adapter in enumerate(service.spec.model.adapters):
        if (hosted := adapter.source.hugging_face) is not None:
            path = f"spec.model.adapters.{number}.source.huggingFace"
            arguments = adapters.download_arguments(adapter.name, hosted)
            yield _Wanted(path, adapter.name, hosted, hub_content.ADAPTER, arguments)


async def _download(wanted: _Wanted, program: Sequence[str], progress: hub.Progress) -> None:
    def keep(_: str, line: str) -> None:
        if line.startswith(SAYS):
            progress(line.removeprefix(SAYS))

    logs = Logs(lambda _line: None, keep=keep)
    process = await Process.start(wanted.name, [*program, *wanted.arguments], os.environ, (), logs)
    try:
        code, last = await process.wait()
    finally:
        process.kill()
        await process.wait()
    if code:
        raise model.ModelUnavailable(last.removeprefix(REFUSES) or f"`legato prepare` ended with code {code}")
