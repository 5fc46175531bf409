"""The content of the next step, and its predicted duration."""
