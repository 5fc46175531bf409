"""What a service needs in the cache folder before its processes start on this machine: its model, and its adapters of
the Hugging Face hub. On Kubernetes, containers that run before them bring it."""

from legato_cli import hub, model
from legato_operator.api.resources import InferenceService
from legato_operator.manifests.common import model_argument


def prepare(service: InferenceService, progress: model.Progress) -> None:
    """Bring there what is missing. Raises ModelUnavailable, which names an adapter by its field in the manifest."""
    model.resolve(model_argument(service), progress)
    for number, adapter in enumerate(service.spec.model.adapters):
        if (found := adapter.source.hugging_face) is not None:
            try:
                model.download(found.repo, found.revision, None, progress, hub.ADAPTER)
            except model.ModelUnavailable as error:
                path = f"spec.model.adapters.{number}.source.huggingFace"
                raise model.ModelUnavailable(f"{path}: {error}") from error
