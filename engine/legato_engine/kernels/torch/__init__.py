"""Kernels in torch: any device, any sizes."""
