"""Where the pods of a plan run: what is the same for all of them and not the service's own wish."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """`program` starts `legato`. Port 0 lets a process choose and announce its port.

    `$(NAME)` in arguments is expanded by whoever runs the pod, as Kubernetes does, from the container's environment.
    """

    program: tuple[str, ...]
    host: str
    front: tuple[str, ...]  # the gateway's flags that say where clients reach it
    health_port: int
    control_port: int
    discovery: tuple[str, ...]  # the gateway's flags that say where it learns of workers
    announce: tuple[str, ...]  # the flags that make a process tell the ports it took
    shared_cores: int | None = None  # that all workers have among them; None where each has a machine to itself


def local(program: tuple[str, ...], cores: int | None = None) -> Placement:
    """Processes on this machine, reachable from this machine only, which share its `cores`.

    Gateways inherit the listening socket of the local cluster, so that one can take over from another without a gap.
    """
    return Placement(
        program=program,
        host="127.0.0.1",
        front=("--listen-fd", "$(LEGATO_LISTEN_FD)"),
        health_port=0,
        control_port=0,
        discovery=("--workers-file", "$(LEGATO_WORKERS_FILE)"),
        announce=("--announce", "$(LEGATO_ANNOUNCE_FILE)"),
        shared_cores=cores,
    )
