"""Reports to gateways and to the worker's server: tokens, load, phases, heartbeats."""
