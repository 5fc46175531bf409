"""Names that several processes use: labels, ports, environment variables, headers."""

API_GROUP = "serving.legato.dev"
API_VERSION = f"{API_GROUP}/v1alpha1"
INFERENCE_SERVICE = "InferenceService"
WORKER_POOL = "WorkerPool"

LABEL_SERVICE = f"{API_GROUP}/service"
LABEL_ROLE = f"{API_GROUP}/role"
LABEL_POD_REVISION = f"{API_GROUP}/pod-revision"
LABEL_SERVING = f"{API_GROUP}/serving"  # "true" on workers that are not draining; a pool's selector counts these
LABEL_APP = "app.kubernetes.io/name"
APP_OPERATOR = "legato-operator"
APP_GATEWAY = "legato-gateway"
APP_WORKER = "legato-worker"

GATEWAY_PORT = 8080
WORKER_HEALTH_PORT = 8081
WORKER_CONTROL_PORT = 8082
CONTROL_TLS_PORT = 8084  # of gateways and workers: the control port over TLS
TRANSFER_PORTS = (8100, 8199)  # first and last, for hand-offs between pods
OPERATOR_PORT = 8083

ENV_TOKEN = "LEGATO_TOKEN"  # the service's token, which authenticates streams and hand-offs
ENV_CACHE = "LEGATO_CACHE"  # folder for prepared models
ENV_PREPARED = "LEGATO_PREPARED"  # read-only folder with models and kernels that an image was built with
ENV_NVTX = "LEGATO_NVTX"  # 1: workers open ranges for NVIDIA's profilers
ENV_PARENT = "LEGATO_PARENT"  # process id that a process of the local cluster must not outlive

TLS_CERTIFICATE = "tls.crt"  # keys of a Secret of the type kubernetes.io/tls, and names of its files
TLS_KEY = "tls.key"
TLS_AUTHORITY = "ca.crt"  # key of such a Secret where cert-manager wrote it
API_KEYS = "api-keys.json"  # key of the Secret with hashes of API keys, and name of its file

HEADER_DEADLINE = "x-legato-deadline"  # seconds, or a duration such as 30s
HEADER_EXPLAIN = "x-legato-explain"
HEADER_ROUTE = "x-legato-route"
HEADER_IGNORED = "x-legato-ignored"
HEADER_DROP_REASON = "x-legato-drop-reason"
HEADER_TENANT = "x-legato-tenant"
ADDRESS_TENANT = "address "  # prefix of a tenant's name that is a client's address
HEADER_PRIORITY = "x-legato-priority"
HEADER_TRACE = "traceparent"  # W3C Trace Context

CONTROL = "control"  # names of ports in pods, Services and the announcements of processes
CONTROL_TLS = "control-tls"

STREAM_PATH = "/stream"
EVENTS_PATH = "/events"


def hub_folder(repo: str, revision: str) -> str:
    """Returns the path, within the cache folder, of the files of one commit of a Hugging Face repository."""
    return f"hub/{repo.replace('/', '--')}/{revision}"
