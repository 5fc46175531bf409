"""Which workers run a request: pure policy over a snapshot of the fleet. No asyncio, no HTTP in here."""
