"""Hand-offs of sequences between workers: sessions, links, and the agent that the core uses."""
