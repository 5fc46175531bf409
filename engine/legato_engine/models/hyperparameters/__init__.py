"""Parts of a model's config: checked fields, keys that are understood, experts and rotary embeddings."""
