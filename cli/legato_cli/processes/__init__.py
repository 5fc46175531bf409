"""Commands that run one process of a service: a gateway, a worker or the operator."""
