"""`legato simulate`: runs a workload through a manifest in virtual time."""
