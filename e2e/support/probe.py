"""Which ports can be reached from where: from inside of pods, since a NetworkPolicy is about them."""

import json
from collections.abc import Sequence

import helm
import kube
from kube import Namespace

STRANGER = "stranger"
LISTENING_PORT = 9000
_TRIES = 5  # a cluster that enforces policies does so a moment after they were written
# Prints those of the ports that let themselves be connected to. What a policy drops is silent.
_SCRIPT = """
import concurrent.futures, json, socket, sys
host, *ports = sys.argv[1:]
def reaches(port):
    try:
        socket.create_connection((host, int(port)), timeout=3).close()
        return True
    except OSError:
        return False
with concurrent.futures.ThreadPoolExecutor(64) as threads:
    print(json.dumps([int(port) for port, reached in zip(ports, threads.map(reaches, ports)) if reached]))
"""
_POD = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
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
spec: {podSelector: {}, policyTypes: [Ingress]}
"""


def start(namespace: Namespace, name: str = STRANGER) -> None:
    """A pod that listens, and from which can be probed."""
    namespace.apply(_POD.format(name=name, image=helm.image("gateway"), port=LISTENING_PORT))
    namespace.kubectl("wait", "pod", name, "--for=condition=Ready", "--timeout=60s")


def reached(namespace: Namespace, pod: str, host: str, ports: Sequence[int]) -> set[int]:
    """The ports of `host` that a pod of the namespace gets through to."""
    words = ["exec", pod, "--", "python3", "-c", _SCRIPT, host, *map(str, ports)]
    return set(json.loads(namespace.kubectl(*words)))


def address(namespace: Namespace, pod: str) -> str:
    return str(namespace.get("pods", pod)["status"]["podIP"])


def policies_are_enforced() -> bool:
    """Whether a policy that lets nobody in keeps somebody out."""
    with kube.namespace("e2e-canary") as closed:
        for name in ("inside", "outside"):
            start(closed, name)
        host = address(closed, "inside")
        assert reached(closed, "outside", host, [LISTENING_PORT]) == {LISTENING_PORT}
        closed.apply(_NOBODY_IN)
        tries = (reached(closed, "outside", host, [LISTENING_PORT]) for _ in range(_TRIES))
        return not all(tries)
