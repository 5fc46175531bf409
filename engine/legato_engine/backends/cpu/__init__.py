"""Layers by compiled kernels on a processor: few calls, no gathering of KV, buffers that live as long as the model."""
