"""Files of a repository at one commit: their names and sizes, and parts of their bytes."""

from functools import partial

from legato_cli.models import gguf_names
from legato_cli.models.hub_content import HubContent, HubRefuses, HubSnapshot, HubUnreachable
from legato_cli.models.shard_outline import ReadRange


def sizes(snapshot: HubSnapshot) -> dict[str, int]:
    """Returns the size in bytes of every file, by name."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    listed = HfApi().list_repo_tree(snapshot.repo, revision=snapshot.commit, recursive=True)
    return {entry.path: entry.size for entry in listed if isinstance(entry, RepoFile)}


def wanted(snapshot: HubSnapshot, content: HubContent) -> dict[str, int]:
    """Returns the sizes of the files that `content` needs, by name. Raises HubRefuses if the repository lacks one."""
    every = sizes(snapshot)
    chosen = {name: size for name, size in every.items() if content.wants(name)}
    if lacking := content.lacking([*chosen]):
        raise HubRefuses(f"{snapshot}: {_lacks(lacking, content, every)}")
    return chosen


def _lacks(lacking: str, content: HubContent, every: dict[str, int]) -> str:
    files = gguf_names.listed(every)
    if content.gguf:
        return f"the repository has no {lacking}" + (f"; its GGUF files are {files}" if files else "")
    advice = f"; to serve one of its GGUF files, name it: {files}" if files else ""
    return f"the repository has no {lacking}, which is needed{advice}"


def reader(snapshot: HubSnapshot, name: str) -> ReadRange:
    """Returns a function that reads bytes of a file. It raises HubUnreachable if it gets another number."""
    return partial(_read_range, snapshot, name)


def _read_range(snapshot: HubSnapshot, name: str, begin: int, end: int) -> bytes:
    from huggingface_hub import HfApi, constants, get_session, hf_hub_url, hf_raise_for_status
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented, not in __all__

    url = hf_hub_url(snapshot.repo, name, revision=snapshot.commit, endpoint=HfApi().endpoint)
    headers = build_hf_headers() | {"range": f"bytes={begin}-{end - 1}"}
    response = get_session().get(url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
    hf_raise_for_status(response)
    if len(response.content) != end - begin:
        raise HubUnreachable(f"{snapshot}: {name}: the hub does not answer with the part that was requested")
    return response.content
