"""The fast engine: a model of gateway and workers, in which decoding flows between two events."""
