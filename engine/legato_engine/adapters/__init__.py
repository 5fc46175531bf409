"""LoRA adapters: their folders, checked at the start, and those of them that are in memory."""
