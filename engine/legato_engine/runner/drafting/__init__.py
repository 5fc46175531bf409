"""Draft models: small models that guess tokens for the model that a worker serves."""
