"""Builders of the operator's objects: pure functions from a service to a manifest, one file per kind."""
