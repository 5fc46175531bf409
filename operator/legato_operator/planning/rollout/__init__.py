"""Rollouts: the revisions of pod templates, replacement of old ones, and upgrades of the operator itself. Pure."""
