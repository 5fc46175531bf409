"""What all APIs share: bodies are read and prepared within bounds, answers are sent as they are made. No API's own
spelling is in here: those are `openai` and `anthropic`.
"""
