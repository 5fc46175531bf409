"""Workloads: recorded traces and synthetic arrivals."""
