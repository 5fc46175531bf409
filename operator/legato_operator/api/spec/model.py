"""`spec.model`: its source, its name, and its adapters."""

from typing import Annotated, Literal

from pydantic import Field

from legato_operator.api import quantities
from legato_operator.api.spec.compute_resources import Resources
from legato_operator.api.spec.manifest_part import ManifestPart, ObjectName
from legato_operator.api.spec.scalars import MaxLength, ServedName

_GGUF_FILE = r"^[A-Za-z0-9_][-A-Za-z0-9_.+=]*(/[A-Za-z0-9_][-A-Za-z0-9_.+=]*)*\.gguf$"


class HubRepository(ManifestPart):
    """A repository on the Hugging Face hub."""

    repo: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][-A-Za-z0-9_.]*/[A-Za-z0-9_][-A-Za-z0-9_.]*$", max_length=200)]
    """The repository's name, `owner/name`."""
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    """A commit of 40 hex digits, so that all workers load the same weights."""
    token_secret: ObjectName | None = None
    """The Secret with an access token, under the key `token`."""


class HuggingFace(HubRepository):
    """A repository on the Hugging Face hub, with settings of its download."""

    file: Annotated[str, Field(pattern=_GGUF_FILE, max_length=400)] | None = None
    """A GGUF file of the repository, which is downloaded instead of safetensors; of a split one, the first part."""
    node_cache: Annotated[str, Field(pattern=r"^/[^:]*$", max_length=4096)] | None = None
    """A directory on every node, writable by the pods' user, that keeps downloads for later pods of the node."""
    resources: Resources = Resources()
    """CPU and memory of the container that downloads the model before a worker or a gateway starts."""


class ModelClaim(ManifestPart):
    """A directory on a volume."""

    claim: ObjectName
    """The PersistentVolumeClaim, in the service's namespace."""
    path: Annotated[str, Field(max_length=4096)] = ""
    """Path of the GGUF file or Hugging Face directory in the volume; its root if not given."""


class Source(ManifestPart):
    """Location of the weights; exactly one field must be set."""

    builtin: Literal["smollm2-135m-instruct"] | None = None
    """A small model that is included in the installation."""
    hugging_face: HuggingFace | None = None
    """A repository on the Hugging Face hub, at one commit."""
    pvc: ModelClaim | None = None
    """A directory on a PersistentVolumeClaim."""
    path: Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^-]")] | None = None
    """A GGUF file, or a Hugging Face directory with safetensors, on the machine (on Kubernetes: on every node)."""
    image: Annotated[str, Field(max_length=500, pattern=quantities.IMAGE)] | None = None
    """An image that holds the weights, mounted as an image volume: Kubernetes 1.35 or newer."""


class HubFile(HubRepository):
    """A repository on the Hugging Face hub, or one GGUF file of it."""

    file: Annotated[str, Field(pattern=_GGUF_FILE, max_length=400)] | None = None
    """A GGUF file of the repository, which is downloaded instead of safetensors; of a split one, the first part."""


class DraftClaim(ModelClaim):
    """A directory on a volume."""


class DraftSource(ManifestPart):
    """Location of a draft model's weights; exactly one field must be set."""

    builtin: Literal["smollm2-135m-instruct"] | None = None
    """A small model that is included in the installation."""
    hugging_face: HubFile | None = None
    """A repository on the Hugging Face hub, at one commit."""
    pvc: DraftClaim | None = None
    """A directory on a PersistentVolumeClaim."""
    path: Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^-]")] | None = None
    """A GGUF file, or a Hugging Face directory with safetensors, on the machine (on Kubernetes: on every node)."""
    image: Annotated[str, Field(max_length=500, pattern=quantities.IMAGE)] | None = None
    """An image that holds the weights, mounted as an image volume: Kubernetes 1.35 or newer."""


class AdapterClaim(ManifestPart):
    """A directory on a volume."""

    claim: ObjectName
    """The PersistentVolumeClaim, in the service's namespace."""
    path: Annotated[str, Field(max_length=4096)] = ""
    """Path of the adapter's directory in the volume; its root if not given."""


class AdapterSource(ManifestPart):
    """Location of an adapter; exactly one field must be set."""

    hugging_face: HubRepository | None = None
    """A repository on the Hugging Face hub, at one commit."""
    pvc: AdapterClaim | None = None
    """A directory on a PersistentVolumeClaim."""
    path: Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^-]")] | None = None
    """A directory as PEFT saves it, on the machine (on Kubernetes: on every node)."""
    image: Annotated[str, Field(max_length=500, pattern=quantities.IMAGE)] | None = None
    """An image that holds the adapter, mounted as an image volume: Kubernetes 1.35 or newer."""


class Adapter(ManifestPart):
    """A LoRA adapter of the model."""

    name: ServedName
    """Model name that clients use in requests."""
    source: AdapterSource
    """Location of the adapter; exactly one of huggingFace, pvc, path and image must be set."""
    max_rank: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Maximum rank of this adapter; maxAdapterRank if not given."""


class AdapterVolume(ManifestPart):
    """A volume that workers mount even without adapters on it; exactly one field must be set."""

    claim: ObjectName | None = None
    """The PersistentVolumeClaim, in the service's namespace."""
    path: Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^-]")] | None = None
    """A directory on the machine (on Kubernetes: on every node)."""


class Model(ManifestPart):
    source: Source
    """Location of the weights; exactly one of builtin, huggingFace, pvc, path and image must be set."""
    served_name: ServedName | None = None
    """Model name that clients use in requests; the service's name if not given."""
    max_length: MaxLength = None
    """Maximum tokens of a sequence: 16 to 16777216, or Auto: the model's maximum, limited by the KV cache."""
    generation_config: Literal["Model", "None"] = "Model"
    """Sampling defaults for requests that set none: the Model's (generation_config.json), or None of them."""
    adapters: Annotated[list[Adapter], Field(max_length=32)] = []
    """LoRA adapters, each served under its own name in addition to the model."""
    adapter_volumes: Annotated[list[AdapterVolume], Field(max_length=8)] = []
    """Volumes that workers mount for future adapters: adapters on them are added and removed without a rollout."""
    adapters_in_memory: Annotated[int, Field(ge=1, le=1024)] = 8
    """Maximum number of adapters in a worker's memory; others are loaded as needed."""
    max_adapter_rank: Annotated[int, Field(ge=1, le=1024)] = 64
    """Maximum rank of an adapter; adapters of a higher rank are not served."""
