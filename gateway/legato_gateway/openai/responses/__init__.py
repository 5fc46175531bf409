"""OpenAI's Responses API, spelled as a chat: bodies, items, events, and responses that are kept for a time."""
