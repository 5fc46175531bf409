"""Text to token ids and back: tokenizer files, chat templates, incremental detokenizing."""
