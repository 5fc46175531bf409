"""Where the pods of a plan run: settings that all services share."""

from dataclasses import dataclass

from legato_operator.api.quantities import GPU
from legato_protocol import names


@dataclass(frozen=True)
class Containers:
    """How pods are made where they run in containers."""

    engine_image: str
    gateway_image: str
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    operator_namespace: str = ""  # where the operator's own pods are; empty where it is not a pod


@dataclass(frozen=True)
class PodPlacement:
    """`program` starts `legato`; empty where the image does. Port 0 lets a process choose and announce its port.

    `$(NAME)` in arguments is expanded by whoever runs the pod, as Kubernetes does, from the container's environment;
    `{service}`, `{namespace}` and, in `url`, `{scheme}` stand for the service's own.
    """

    program: tuple[str, ...]
    host: str
    listen_flags: tuple[str, ...]  # the gateway's flags that say where clients reach it
    health_port: int
    control_port: int
    discovery: tuple[str, ...]  # the gateway's flags that say where it learns of workers
    token_folder: str  # where processes find the service's tokens
    adapters_folder: str  # where they find the list of its adapters
    announce: tuple[str, ...] = ()  # the flags that make a process tell the ports it took
    transfer: tuple[str, ...] = ()  # the worker's flags that say where hand-offs reach it
    shared_cores: int | None = None  # that all workers have among them; None where each has a machine to itself
    shared_gpus: tuple[str, ...] = ()  # that all workers have among them, as CUDA_VISIBLE_DEVICES names them
    containers: Containers | None = None  # None: pods are processes, which see the machine's own files
    cache_folder: str = ""  # of this machine, with what was downloaded; pods in containers have one of their own
    tracing_endpoint: str = ""  # where traces of services go whose manifest names no collector; empty: nowhere
    url: str = ""  # where clients reach a service; empty where that is not the operator's to say
    gpu_resources: tuple[str, ...] = (GPU,)  # names of resources that are GPUs
    token_lifetime: float = 0.0  # seconds after which a service's token is replaced; 0: only when that is asked for
    requeue_after: float = 0.5  # seconds, while something is moving: workers' own state sends no events
    resync_after: float = 5.0

    @property
    def has_gpus(self) -> bool:
        """Whether workers that request GPUs get some. In containers, that is the scheduler's business."""
        return self.containers is not None or bool(self.shared_gpus)


def local(
    program: tuple[str, ...], cores: int | None = None, cache_folder: str = "", gpus: tuple[str, ...] = ()
) -> PodPlacement:
    """Processes on this machine, reachable from this machine only, which share its `cores` and `gpus`.

    Gateways inherit the listening socket of the local cluster, so that one can take over from another without a gap.
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
        shared_gpus=gpus,
        cache_folder=cache_folder,
    )


def kubernetes(
    engine_image: str,
    gateway_image: str,
    pull_policy: str = "IfNotPresent",
    pull_secrets: tuple[str, ...] = (),
    operator_namespace: str = "",
    gpu_resources: tuple[str, ...] = (GPU,),
    tracing_endpoint: str = "",
    token_lifetime: float = 0.0,
) -> PodPlacement:
    """Pods of a cluster: each has an address and ports of its own, and events tell when to look again."""
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
        containers=Containers(engine_image, gateway_image, pull_policy, pull_secrets, operator_namespace),
        gpu_resources=gpu_resources,
        tracing_endpoint=tracing_endpoint,
        token_lifetime=token_lifetime,
        url="{scheme}://{service}.{namespace}.svc/v1",
        requeue_after=1.0,
        resync_after=30.0,
    )
