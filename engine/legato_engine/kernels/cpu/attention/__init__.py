"""Attention on processors."""
