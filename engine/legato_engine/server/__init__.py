"""The HTTP process of a worker: streams, events, probes, metrics. Starts and supervises the core. No torch."""
