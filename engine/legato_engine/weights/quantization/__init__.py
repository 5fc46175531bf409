"""Quantized weights of Hugging Face checkpoints: their formats as data, and their values in float32.

To add a `quant_method`:

1. Write a function in `methods` that reads its keys into a `Quantization`, and add it to the table in `config`.
2. If its files name or pack tensors differently, add a `Layout` to `formats`, and a class that reads it to `layouts`.
3. Add it to docs/models.md, and in tests/engine/weights to `test_quantization.py`, `test_bad_quantization.py` and
   `test_quantized_models.py`.

CPUs then compute from its codes where `Packed` represents the values exactly, GPUs where `Grouped` does and
`backends.cuda.products` has a product. `weights.gguf_blocks` has GGUF's types.
"""
