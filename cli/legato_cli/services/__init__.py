"""Commands for a running service, of a `legato up` or on Kubernetes, and the way in which they reach it."""
