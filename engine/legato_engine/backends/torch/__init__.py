"""Layers computed by torch's own operators, in one dtype throughout: any device, any sizes."""
