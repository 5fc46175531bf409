"""Kernels by torch: any device, any sizes."""
