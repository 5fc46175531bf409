"""A Prometheus in the cluster, at the address that the docs name, with the chart's rules for those who scale pools."""

import contextlib
import json
from collections.abc import Iterator
from textwrap import indent
from urllib.parse import quote

import helm
import kube
from kube import Object
from service import Service

_ROLES = ("gateway", "prefill", "decode")
_RULES = helm.PRESENT.chart / "files" / "rules" / "external.yaml"
# Debian's Prometheus cannot ask the API for pods. A Service of each role lets it ask DNS.
_ADDRESSES = """
apiVersion: v1
kind: Service
metadata: {{name: metrics-{role}}}
spec:
  clusterIP: None
  selector: {{serving.legato.dev/service: {service}, serving.legato.dev/role: {role}}}
  ports: [{{name: health, port: 8081}}]
---
"""
_JOB = """
  - job_name: {role}
    dns_sd_configs:
      - {{names: [metrics-{role}.{namespace}.svc.cluster.local], type: A, port: 8081, refresh_interval: 5s}}
    relabel_configs:
      - {{target_label: namespace, replacement: {namespace}}}
      - {{target_label: service, replacement: {service}}}
      - {{target_label: role, replacement: {role}}}
"""
_CONFIG = """
global: {{scrape_interval: 5s, evaluation_interval: 5s}}
rule_files: [/config/rules.yaml]
scrape_configs: {jobs}
"""
_SERVER = """
apiVersion: v1
kind: ConfigMap
metadata: {{name: prometheus}}
data:
  prometheus.yaml: |
{config}
  rules.yaml: |
{rules}
---
apiVersion: v1
kind: Service
metadata: {{name: prometheus}}
spec: {{selector: {{app: prometheus}}, ports: [{{port: 9090}}]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: prometheus}}
spec:
  selector: {{matchLabels: {{app: prometheus}}}}
  template:
    metadata: {{labels: {{app: prometheus}}}}
    spec:
      securityContext: {{runAsNonRoot: true, seccompProfile: {{type: RuntimeDefault}}}}
      containers:
        - name: prometheus
          image: {image}
          args: [--config.file=/config/prometheus.yaml, --storage.tsdb.path=/data]
          readinessProbe: {{httpGet: {{path: /-/ready, port: 9090}}, periodSeconds: 1}}
          securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
          volumeMounts: [{{name: config, mountPath: /config}}, {{name: data, mountPath: /data}}]
      volumes: [{{name: config, configMap: {{name: prometheus}}}}, {{name: data, emptyDir: {{}}}}]
"""


@contextlib.contextmanager
def scraping(service: Service) -> Iterator[None]:
    """From when it has scraped a gateway and a worker of each pool."""
    where = {"service": service.name, "namespace": service.namespace.name}
    service.namespace.apply("".join(_ADDRESSES.format(role=role, **where) for role in _ROLES))
    config = _CONFIG.format(jobs="".join(_JOB.format(role=role, **where) for role in _ROLES))
    files = {"config": indent(config, "    "), "rules": indent(_RULES.read_text(), "    ")}
    with kube.namespace("monitoring") as monitoring:
        monitoring.apply(_SERVER.format(image=helm.image("prometheus"), **files))
        monitoring.kubectl("rollout", "status", "deployment/prometheus", "--timeout=120s")
        kube.until(lambda: len(ask("count by (role) (up == 1)")) == len(_ROLES), "every role is scraped")
        yield


def ask(query: str) -> list[Object]:
    server = "/api/v1/namespaces/monitoring/services/prometheus:9090/proxy"
    answer = json.loads(kube.run("kubectl", "get", "--raw", f"{server}/api/v1/query?query={quote(query)}"))
    found: list[Object] = answer["data"]["result"]
    return found
