"""How many workers each pool should have: pure, from what gateways and workers tell."""
