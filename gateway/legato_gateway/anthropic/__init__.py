"""Anthropic's Messages API: its bodies become chats, its answers are spelled from the same pieces."""
