"""The processes of a worker's ranks: the first one, its core, leads; the others follow its steps."""
