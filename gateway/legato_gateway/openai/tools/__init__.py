"""Tools: a request's fields for tools and earlier calls, and the grammars of calls."""
