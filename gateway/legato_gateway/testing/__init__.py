"""Scripted workers without a model, shipped for tests and benchmarks."""
