"""The operator on Kubernetes: the API as a `Cluster`, kopf's handlers, and the process around them."""
