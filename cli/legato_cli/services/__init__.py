"""Commands for a running service, of a `legato up` or on Kubernetes, and their access to it."""
