"""Discovery of workers: names and addresses, and their changes. Nothing about health.

Only `kubernetes` talks to the Kubernetes API. It is imported on demand, as its client costs 10 MiB.
"""

from legato_gateway.discovery.addresses import Discovery, StaticDiscovery, WorkerAddress
from legato_gateway.discovery.file import BadWorkersFile, FileDiscovery, parse_workers

__all__ = ["BadWorkersFile", "Discovery", "FileDiscovery", "StaticDiscovery", "WorkerAddress", "parse_workers"]
