"""Reasoning: what a model thinks before it answers, found in what it writes, and how a template is told of it."""
