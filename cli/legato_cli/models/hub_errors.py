"""Maps the errors of `huggingface_hub` to ours."""

import contextlib
import importlib.util
from collections.abc import Iterator

from legato_cli.models.hub_content import HubRefuses, HubUnreachable


def require_library(about: object) -> None:
    """Raises HubRefuses, which names the snapshot, without the library."""
    if importlib.util.find_spec("huggingface_hub") is None:
        raise HubRefuses(
            f"{about}: downloads need the package huggingface_hub, which legato[engine] and legato[gateway] install"
        )


@contextlib.contextmanager
def explained(snapshot: object) -> Iterator[None]:
    """Raises HubRefuses or HubUnreachable for the library's errors, and the system's own errors unchanged."""
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise HubRefuses(
            f"{snapshot}: access is restricted (request it on the hub, and set HF_TOKEN to a token of that account)"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise HubRefuses(f"{snapshot}: no such repository, or none that HF_TOKEN may read") from error
    except errors.RevisionNotFoundError as error:
        raise HubRefuses(f"{snapshot}: the repository has no such commit") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise HubRefuses(f"{snapshot}: the hub refuses HF_TOKEN ({status})") from error
        raise HubUnreachable(f"{snapshot}: the hub answers {status}") from error
    except (errors.EntryNotFoundError, ConnectionError, TimeoutError, httpx2.HTTPError) as error:
        raise HubUnreachable(f"{snapshot}: cannot reach the hub: {_first_line(error)}") from error
    except errors.HFValidationError as error:
        raise HubRefuses(f"{snapshot}: {_first_line(error)}") from error
    except (OSError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of this machine, neither of the library nor of its storage hf_xet
        raise HubUnreachable(f"{snapshot}: the download failed: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
