"""Records of requests: their times, latencies for metrics, spans, and routes for `legato state`."""
