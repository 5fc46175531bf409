"""Code shared by all APIs: reading and preparing bodies within bounds, and sending answers as they are made.

Wire formats are in `openai` and `anthropic`.
"""
