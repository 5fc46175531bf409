"""Sampling: `sampler.sample`. A token depends only on its logits, parameters, seed, choice and position."""
