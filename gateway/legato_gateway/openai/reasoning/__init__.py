"""Reasoning: a request's options for it, and the template's variables."""
