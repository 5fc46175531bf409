"""Access to the API server: connection, paths of kinds, and calls as a `Cluster`."""
