"""Commands about this machine: its processors, GPUs and transports, and configurations of kernels for them."""
