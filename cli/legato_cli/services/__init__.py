"""A running service as commands reach it: of a `legato up`, or on Kubernetes."""
