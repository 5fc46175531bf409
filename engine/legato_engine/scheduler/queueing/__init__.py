"""Waiting requests: their order, and admission to the running ones."""
