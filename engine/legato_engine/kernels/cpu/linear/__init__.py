"""Linear layers on processors."""
