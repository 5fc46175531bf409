"""The HTTP server and application: listeners, limits, probes and `/state`."""
