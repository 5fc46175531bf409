"""A device plugin whose devices are only numbers. The kubelet allocates them to containers like GPUs.

    plugin.py RESOURCE COUNT

A device is unhealthy while a file of its number is in /unhealthy. A container gets the numbers of its devices in the
variable E2E_DEVICES. The plugin ends when its socket is gone, since a kubelet that starts deletes all sockets.
"""

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import plugin_pb2 as api
import plugin_pb2_grpc as rpc

SOCKETS = Path("/var/lib/kubelet/device-plugins")
UNHEALTHY = Path("/unhealthy")
POLL = 0.2  # seconds


class Devices(rpc.DevicePluginServicer):
    """Numbered devices, as the kubelet sees them."""

    def __init__(self, count: int) -> None:
        self._count = count

    def GetDevicePluginOptions(self, request, context):
        return api.DevicePluginOptions()

    def ListAndWatch(self, request, context) -> Iterator:
        """Sends the devices with their health, first and after each change."""
        sent = None
        while context.is_active():
            devices = [api.Device(ID=str(number), health=_health(number)) for number in range(self._count)]
            if devices != sent:
                sent = devices
                yield api.ListAndWatchResponse(devices=devices)
            time.sleep(POLL)

    def Allocate(self, request, context):
        numbers = (",".join(each.devices_ids) for each in request.container_requests)
        return api.AllocateResponse(
            container_responses=[api.ContainerAllocateResponse(envs={"E2E_DEVICES": each}) for each in numbers]
        )


def _health(number: int) -> str:
    return "Unhealthy" if (UNHEALTHY / str(number)).exists() else "Healthy"


def main(resource: str, count: int) -> None:
    socket = SOCKETS / f"{resource.replace('/', '-')}.sock"
    socket.unlink(missing_ok=True)  # of a plugin that was killed
    server = grpc.server(ThreadPoolExecutor(4))
    rpc.add_DevicePluginServicer_to_server(Devices(count), server)
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    with grpc.insecure_channel(f"unix://{SOCKETS / 'kubelet.sock'}") as channel:
        registration = api.RegisterRequest(version="v1beta1", endpoint=socket.name, resource_name=resource)
        rpc.RegistrationStub(channel).Register(registration, timeout=10)
    print(f"{count} devices {resource} are registered", flush=True)
    while socket.exists():
        time.sleep(POLL)
    sys.exit("the kubelet was restarted")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
