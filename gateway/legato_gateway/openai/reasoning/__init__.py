"""Reasoning: what a request may ask of it, and how a template is told."""
