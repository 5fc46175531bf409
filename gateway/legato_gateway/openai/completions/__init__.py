"""Completions of prompts: bodies, and their answers."""
