"""Probes which ports can be reached from where: from inside of pods, since NetworkPolicies are about these."""

import json
import time
from collections.abc import Iterable, Sequence

import helm
import kube
from kube import Namespace

STRANGER = "stranger"
LISTENING_PORT = 9000
_PATIENCE = 60.0  # seconds within which a cluster has to enforce a policy
# Prints which ports of which hosts accept a connection. A policy drops packets silently.
_SCRIPT = """
import asyncio, json, sys
async def reaches(host, port):
    try:
        async with asyncio.timeout(3):
            (await asyncio.open_connection(host, port))[1].close()
        return True
    except OSError:
        return False
async def scan(hosts, ports):
    pairs = [(host, port) for host in hosts for port in ports]
    found = await asyncio.gather(*(reaches(*pair) for pair in pairs))
    return [pair for pair, reached in zip(pairs, found) if reached]
print(json.dumps(asyncio.run(scan(*map(json.loads, sys.argv[1:])))))
"""
_POD = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{probe: {name}}}}}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  securityContext: {{runAsNonRoot: true, runAsUser: 65532, seccompProfile: {{type: RuntimeDefault}}}}
  containers:
    - name: python
      image: {image}
      command: [python3, -c]
      args: ["from http import server as s; s.HTTPServer(('', {port}), s.BaseHTTPRequestHandler).serve_forever()"]
      readinessProbe: {{tcpSocket: {{port: {port}}}, periodSeconds: 1}}
      resources: {{requests: {{cpu: 10m, memory: 32Mi}}}}
      securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
"""
_NOBODY_IN = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: nobody-in}
spec: {podSelector: {matchLabels: {probe: inside}}, policyTypes: [Ingress]}
"""


def start(namespace: Namespace, *names: str) -> None:
    """Starts pods that listen, and from which can be probed."""
    for name in names:
        namespace.apply(_POD.format(name=name, image=helm.image("gateway"), port=LISTENING_PORT))
    namespace.kubectl("wait", "pod", *names, "--for=condition=Ready", "--timeout=120s")


def reached(namespace: Namespace, pod: str, hosts: Iterable[str], ports: Sequence[int]) -> dict[str, set[int]]:
    """Returns the ports of each host that a pod of the namespace can connect to."""
    hosts = list(hosts)
    words = ["exec", pod, "--", "python3", "-c", _SCRIPT, json.dumps(hosts), json.dumps([*ports])]
    found: dict[str, set[int]] = {host: set() for host in hosts}
    for host, port in json.loads(namespace.kubectl(*words)):
        found[host].add(port)
    return found


def address(namespace: Namespace, pod: str) -> str:
    return str(namespace.get("pods", pod)["status"]["podIP"])


def needs_policies(namespace: Namespace) -> None:
    """Skips the test unless a policy that lets nobody in keeps a pod of the namespace out."""
    start(namespace, "inside", "outside")
    host = address(namespace, "inside")

    def is_reached() -> bool:
        return bool(reached(namespace, "outside", [host], [LISTENING_PORT])[host])

    kube.until(is_reached, "one pod reaches the other")
    namespace.apply(_NOBODY_IN)
    give_up = time.monotonic() + _PATIENCE
    while is_reached():
        if time.monotonic() > give_up:
            kube.lacks("this cluster does not enforce NetworkPolicies")
    for pod in ("inside", "outside"):
        namespace.delete("pods", pod)
    namespace.delete("networkpolicies", "nobody-in")
