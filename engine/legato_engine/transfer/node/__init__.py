"""KV read from the memory of another worker on the same node. See designs/node-memory.md."""
