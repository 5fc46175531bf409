"""Sequences whose KV comes from, or goes to, another worker."""
