"""Moving sequences between workers: sessions, links, and the agent that the core talks to."""
