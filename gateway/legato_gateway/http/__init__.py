"""The HTTP server and application: where the gateway listens, what it bounds, probes and `/state`."""
