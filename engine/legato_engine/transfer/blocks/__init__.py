"""Blocks of KV on their way: checksums, runs, puts, and landing."""
