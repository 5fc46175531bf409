"""Runs a workload in virtual time: the loop that both engines share, the pods and the results."""
