"""`legato plan`: searches the pools for a workload, and writes the manifest to apply."""
