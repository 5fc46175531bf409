"""Computes batches: weights, KV arena and sampling of one model on one device."""
