"""OpenAI's HTTP API over the relay: requests checked and tokenized, answers and errors in OpenAI's shapes."""
