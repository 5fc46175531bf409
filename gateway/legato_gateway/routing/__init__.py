"""Chooses the workers of a request: pure policy over a snapshot of the fleet. No asyncio and no HTTP in here."""
