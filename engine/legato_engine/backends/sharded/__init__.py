"""Tensor parallelism: a rank's part of a model, computed by any backend; the parts of all ranks are added."""
