"""Tools: what a request may say of them and of earlier calls, and the grammars that calls have to match."""
