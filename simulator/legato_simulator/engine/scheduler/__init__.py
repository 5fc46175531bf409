"""The exact engine: the production gateway and schedulers, step by step."""
