"""Health and load of the GPUs that a worker computes on, read by its server process."""
