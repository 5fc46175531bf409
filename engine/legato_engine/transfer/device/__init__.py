"""Access to the memory of a device: CUDA, staging through the host, GPUDirect."""
