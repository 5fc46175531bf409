"""Builders of the objects that the operator owns: pure functions from a service to a manifest, one file a kind."""
