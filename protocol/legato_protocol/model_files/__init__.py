"""A model's files as engine and gateway both read them: GGUF headers, tokens' bytes, digests, adapters."""
