"""`legato chat`: talking to a running service in a terminal, or from a pipe."""
