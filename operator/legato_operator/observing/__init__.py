"""One read pass over the cluster, workers and gateways, and its result."""
