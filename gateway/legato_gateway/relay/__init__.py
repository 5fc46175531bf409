"""Runs requests: their sub-requests on workers, attempts, failures and migrations, and the answers made of tokens."""
