"""The API server's address and the operator's credentials: from its pod, else from the user's kubeconfig."""

from kubernetes import config
from kubernetes.client import ApiClient, Configuration
from kubernetes.config.config_exception import ConfigException


class NoConnection(Exception):
    """Neither a pod's service account nor a usable kubeconfig exists."""


def load() -> Configuration:
    """Returns the configuration, which reloads expiring tokens. Raises NoConnection."""
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
    """Returns a client with its own connections and without retries, which callers decide about."""
    configuration.retries = False
    return ApiClient(configuration)
