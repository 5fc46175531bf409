"""`legato simulate`: a workload through a manifest in virtual time, with the very decisions of the operator."""
