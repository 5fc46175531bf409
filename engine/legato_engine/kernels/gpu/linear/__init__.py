"""Products with quantized weights in Triton: `multiply` of a few rows with codes, `dequantize` for more rows, `fp8` of
8-bit activations. `codes` has the layout. The maths is in `reference/linear.md`."""
