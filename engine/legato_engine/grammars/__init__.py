"""Grammars for structured output: compiled in a thread, with the position of each sequence in its grammar."""
