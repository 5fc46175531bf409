"""OpenAI's HTTP API: converts its bodies to relay requests, and writes answers in its format."""
