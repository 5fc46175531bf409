"""Runs a service with a workload in virtual time: `legato simulate`."""
