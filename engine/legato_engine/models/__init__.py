"""Models: their configuration, and one file for each family."""
