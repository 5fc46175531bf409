"""Parsers of models' output: reasoning and calls of tools, each in the format of the model's family."""
