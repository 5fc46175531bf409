"""KV blocks in files: their format and folder, and the thread that reads and writes them."""
