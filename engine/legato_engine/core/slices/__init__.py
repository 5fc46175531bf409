"""Workers that share cores take time slices of one step each, in order of deadlines."""
