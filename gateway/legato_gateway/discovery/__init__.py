"""Discovery of workers: names and addresses, and their changes. Nothing about health.

`kubernetes` is the gateway's only door to Kubernetes. It is imported on demand, as its client costs 10 MiB.
"""

from legato_gateway.discovery.addresses import Discovery, StaticDiscovery, WorkerAddress
from legato_gateway.discovery.file import BadWorkersFile, FileDiscovery, parse_workers

__all__ = ["BadWorkersFile", "Discovery", "FileDiscovery", "StaticDiscovery", "WorkerAddress", "parse_workers"]
