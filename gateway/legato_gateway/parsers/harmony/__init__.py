"""Harmony, the format of gpt-oss: an answer consists of messages in channels, some of them to functions."""
