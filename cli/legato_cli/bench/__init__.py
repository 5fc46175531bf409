"""`legato bench`: drives any OpenAI-compatible server and measures what its users feel."""
