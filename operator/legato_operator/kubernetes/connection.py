"""Where the API server is and who the operator is to it: from the pod it runs in, else from the user's kubeconfig."""

from kubernetes import config
from kubernetes.client import ApiClient, Configuration
from kubernetes.config.config_exception import ConfigException


class NoConnection(Exception):
    """Neither a pod's service account nor a kubeconfig. The text says what was looked for."""


def load() -> Configuration:
    """Raises NoConnection. Tokens that expire are read again by the configuration itself."""
    configuration = Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except ConfigException as not_in_pod:
        try:
            config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except (ConfigException, OSError) as error:
            raise NoConnection(f"not in a pod ({not_in_pod}), and no kubeconfig can be used: {error}") from None
    return configuration


def client(configuration: Configuration) -> ApiClient:
    """A client of its own connections. It tries each call once: whoever calls knows better when to try again."""
    configuration.retries = False
    return ApiClient(configuration)
