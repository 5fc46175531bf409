"""From logits to tokens: `sampler.sample`. A token depends on its logits, params, seed, choice and position alone."""
