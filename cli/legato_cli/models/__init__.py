"""Models in files: resolved, downloaded from a hub, and prepared ahead of the first start."""
