"""Quantized weights of Hugging Face checkpoints: their formats as data, and their values in float32."""
