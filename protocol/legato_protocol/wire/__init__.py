"""Messages between gateways and workers, and between workers, with their encoding."""
