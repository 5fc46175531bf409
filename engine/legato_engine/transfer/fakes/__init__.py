"""A link and a device in virtual time, for tests and simulations."""
