"""Where the pods of a plan run: what is the same for all of them and not the service's own wish."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """`program` starts `legato`. Port 0 lets a process choose and announce its port.

    `$(NAME)` in arguments is expanded by whoever runs the pod, as Kubernetes does, from the container's environment.
    """

    program: tuple[str, ...]
    host: str
    gateway_port: int
    health_port: int
    control_port: int
    discovery: tuple[str, ...]  # the gateway's flags that say where it learns of workers
    announce: tuple[str, ...]  # the flags that make a process tell the ports it took
    shared_cores: int | None = None  # that all workers have among them; None where each has a machine to itself


def local(program: tuple[str, ...], gateway_port: int, cores: int | None = None) -> Placement:
    """Processes on this machine, reachable from this machine only, which share its `cores`."""
    return Placement(
        program=program,
        host="127.0.0.1",
        gateway_port=gateway_port,
        health_port=0,
        control_port=0,
        discovery=("--workers-file", "$(LEGATO_WORKERS_FILE)"),
        announce=("--announce", "$(LEGATO_ANNOUNCE_FILE)"),
        shared_cores=cores,
    )
