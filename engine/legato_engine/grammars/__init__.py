"""Output that has to match a grammar: grammars compiled beside the loop, and where each sequence is in its own."""
