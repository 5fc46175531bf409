"""The HTTP process of a worker: streams, events, probes, metrics. Starts and watches the core. No torch in here."""
