"""What models are written against and backends make: layers, and the step that they compute. No kernels, no weights."""
