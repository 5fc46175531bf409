"""What computes a model's layers: `torch` on any device, `cpu` by compiled kernels on a processor.

A backend packs weights, owns the buffers of a step, works out its attention metadata and chooses operators.
"""
