"""Speculation: guesses at the next tokens of a sequence, verified by one step that samples after each of them."""
