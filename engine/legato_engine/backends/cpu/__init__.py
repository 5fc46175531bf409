"""Layers computed by compiled CPU kernels: few calls, no gathering of KV, buffers that live as long as the model."""
