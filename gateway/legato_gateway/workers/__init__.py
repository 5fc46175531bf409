"""The workers this gateway knows: their connections, and what each last told."""
