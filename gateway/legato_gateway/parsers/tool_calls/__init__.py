"""Calls of tools: the formats of models' calls, and the tools in the chat template's input."""
