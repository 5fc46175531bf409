"""Replays the recorded signals of a running service with another manifest."""
