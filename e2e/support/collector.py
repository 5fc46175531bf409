"""A collector of traces as a pod: it prints what is sent to it over OTLP, a span in a line, for `kubectl logs`."""

import json

import helm
import kube
from kube import Namespace, Object

NAME, PORT = "collector", 4318
# The gateway's image has what understands OTLP, since gateways send it.
_SCRIPT = r"""
import json, os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest as Sent

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        for group in Sent.FromString(self.rfile.read(int(self.headers["content-length"]))).resource_spans:
            process = texts(group.resource.attributes)["service.name"]
            for span in (span for scope in group.scope_spans for span in scope.spans):
                ids = {"trace": span.trace_id.hex(), "id": span.span_id.hex(), "parent": span.parent_span_id.hex()}
                worker = texts(span.attributes).get("legato.worker", "")
                line = json.dumps({**ids, "name": span.name, "process": process, "worker": worker})
                os.write(1, f"{line}\n".encode())  # in one write, as several threads do so
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass

def texts(attributes):
    return {pair.key: pair.value.string_value for pair in attributes}

ThreadingHTTPServer(("", %d), Handler).serve_forever()
"""
_OBJECTS = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  securityContext: {{runAsNonRoot: true, runAsUser: 65532, seccompProfile: {{type: RuntimeDefault}}}}
  containers:
    - name: {name}
      image: {image}
      command: [python3, -c]
      args: [{script}]
      readinessProbe: {{tcpSocket: {{port: {port}}}, periodSeconds: 1}}
      resources: {{requests: {{cpu: 10m, memory: 32Mi}}}}
      securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
---
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec: {{selector: {{app: {name}}}, ports: [{{port: {port}}}]}}
"""


def start(namespace: Namespace) -> str:
    """Returns its address, for `spec.tracing.endpoint`."""
    script = json.dumps(_SCRIPT % PORT)
    namespace.apply(_OBJECTS.format(name=NAME, image=helm.image("gateway"), script=script, port=PORT))
    namespace.kubectl("wait", "pod", NAME, "--for=condition=Ready", f"--timeout={kube.PATIENCE:.0f}s")
    return f"http://{NAME}.{namespace.name}.svc:{PORT}"


def spans(namespace: Namespace, trace: str) -> list[Object]:
    """Returns the spans of a trace that it has received so far."""
    lines = namespace.kubectl("logs", NAME).splitlines()
    return [span for span in map(json.loads, lines) if span["trace"] == trace]
