"""LoRA adapters: opens and checks their folders, and loads them into memory on demand."""
