"""Calls of tools: the formats in which models write them, and how a template is told of tools."""
