"""The environment in which pods run: settings shared by all services."""

from dataclasses import dataclass

from legato_operator.api.quantities import GPU
from legato_protocol import names


@dataclass(frozen=True)
class Containers:
    """Settings of pods that run in containers."""

    engine_image: str
    gateway_image: str
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    operator_namespace: str = ""  # namespace of the operator's own pods; empty if it is not a pod


@dataclass(frozen=True)
class PodPlacement:
    """The environment of pods. `program` is the command that starts `legato`; empty if the image does. With port 0, a
    process chooses and announces its port.

    `$(NAME)` in arguments is expanded from the container's environment, as by Kubernetes. `{service}`, `{namespace}`
    and, in `url`, `{scheme}` are replaced by the service's values.
    """

    program: tuple[str, ...]
    host: str
    listen_flags: tuple[str, ...]  # the gateway's flags for its listening socket
    health_port: int
    control_port: int
    discovery: tuple[str, ...]  # the gateway's flags for the discovery of workers
    token_folder: str  # folder of the service's tokens
    adapters_folder: str  # folder of the list of adapters
    announce: tuple[str, ...] = ()  # flags that make a process announce its ports
    transfer: tuple[str, ...] = ()  # the worker's flags for the address of hand-offs
    shared_cores: int | None = None  # cores that all workers share; None if each has its own machine
    time_slices: tuple[str, ...] = ()  # the worker's flags for time slices of shared cores
    shared_gpus: tuple[str, ...] = ()  # GPUs that all workers share, as in CUDA_VISIBLE_DEVICES
    containers: Containers | None = None  # None: pods are processes that use the machine's own files
    cache_folder: str = ""  # downloads on this machine; pods in containers have their own
    tracing_endpoint: str = ""  # default endpoint for traces; empty for none
    url: str = ""  # URL of a service for clients; empty if the operator does not know it
    gpu_resources: tuple[str, ...] = (GPU,)  # names of resources that are GPUs
    token_lifetime: float = 0.0  # seconds until a service's token is rotated; 0: only on request
    requeue_after: float = 0.5  # seconds between passes during a change: workers' state sends no events
    resync_after: float = 5.0  # seconds between passes with nothing to do
    idle_resync_after: float = 5.0  # the same for an idle service, of which only unwatched objects can change

    @property
    def machine_gpus(self) -> int | None:
        """Number of this machine's GPUs; None for containers, because the scheduler finds them a node."""
        return None if self.containers is not None else len(self.shared_gpus)

    @property
    def has_gpus(self) -> bool:
        """True if workers that request GPUs can get some."""
        return self.machine_gpus != 0


def local(
    program: tuple[str, ...], cores: int | None = None, cache_folder: str = "", gpus: tuple[str, ...] = ()
) -> PodPlacement:
    """Returns the placement of processes on this machine, which share its `cores` and `gpus` and only listen locally.

    Gateways inherit the listening socket of the local cluster, so that one can replace another without a gap.
    """
    return PodPlacement(
        program=program,
        host="127.0.0.1",
        listen_flags=("--listen-fd", "$(LEGATO_LISTEN_FD)"),
        health_port=0,
        control_port=0,
        discovery=("--workers-file", "$(LEGATO_WORKERS_FILE)"),
        token_folder="$(LEGATO_TOKEN_FOLDER)",
        adapters_folder="$(LEGATO_ADAPTERS_FOLDER)",
        announce=("--announce", "$(LEGATO_ANNOUNCE_FILE)"),
        shared_cores=cores,
        time_slices=("--time-slices", "$(LEGATO_SLICES_FOLDER)"),
        shared_gpus=gpus,
        cache_folder=cache_folder,
    )


def kubernetes(containers: Containers) -> PodPlacement:
    """Returns the placement of pods in a cluster, each with its own address and ports."""
    low, high = names.TRANSFER_PORTS
    return PodPlacement(
        program=(),
        host="::",  # every address of the pod, of both IP families
        listen_flags=("--port", str(names.GATEWAY_PORT)),
        health_port=names.WORKER_HEALTH_PORT,
        control_port=names.WORKER_CONTROL_PORT,
        discovery=("--workers-service", "{service}-workers", "--namespace", "{namespace}"),
        token_folder="/etc/legato/token",
        adapters_folder="/etc/legato/adapters",
        transfer=("--transfer-host", "$(LEGATO_POD_IP)", "--transfer-ports", f"{low}-{high}"),
        containers=containers,
        url="{scheme}://{service}.{namespace}.svc/v1",
        requeue_after=1.0,
        resync_after=30.0,
        idle_resync_after=600.0,
    )
