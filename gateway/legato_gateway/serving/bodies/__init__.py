"""Bodies of requests: read within limits, parsed, and prepared off the event loop."""
