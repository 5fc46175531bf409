"""OpenAI's HTTP API: its bodies become requests of the relay, and answers are spelled in its shapes."""
