"""Builders of pods: workers and gateways, with their containers, volumes, devices and users' additions. Pure."""
