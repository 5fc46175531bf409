"""Manifests in files, and problems that need no cluster to find."""
