"""Reasoning: what a model thinks before it answers, and the marks by which that is found."""
