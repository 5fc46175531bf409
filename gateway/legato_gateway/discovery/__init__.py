"""Where the workers are: names and addresses, and how a change of them is learned. Nothing about their health.

`kubernetes` is the gateway's only door to Kubernetes, and is imported by who needs it: its client costs 10 MiB.
"""

from legato_gateway.discovery.addresses import Discovery, StaticDiscovery, WorkerAddress
from legato_gateway.discovery.file import BadWorkersFile, FileDiscovery, parse_workers

__all__ = ["BadWorkersFile", "Discovery", "FileDiscovery", "StaticDiscovery", "WorkerAddress", "parse_workers"]
