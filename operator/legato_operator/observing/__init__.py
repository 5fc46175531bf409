"""One read pass over the cluster and the workers, and what it finds."""
