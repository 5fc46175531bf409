"""`legato ui`: a page on this machine that shows a running service, with what its autoscaler decided."""
