"""The KV cache as numbers: who owns which block, what can be found, where a block lies. No device code in here."""
