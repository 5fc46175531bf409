"""Weights on disk: Hugging Face folders and GGUF files behind one interface. No layers."""
