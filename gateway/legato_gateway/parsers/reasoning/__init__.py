"""Reasoning: a model's thoughts before its answer, and the marks around them."""
