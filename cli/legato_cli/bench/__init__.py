"""`legato bench`: sends load to any OpenAI-compatible server, and measures latencies and throughput."""
