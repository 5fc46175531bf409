"""Anthropic's Messages API: converts its bodies to chats, and writes answers from the same pieces."""
