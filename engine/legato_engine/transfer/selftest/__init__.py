"""Whether a transport carries hand-offs here and keeps late writes out, tried before a worker relies on it."""
