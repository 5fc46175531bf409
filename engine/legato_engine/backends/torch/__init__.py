"""Layers by torch's own operators, in one dtype throughout: any device, any sizes."""
