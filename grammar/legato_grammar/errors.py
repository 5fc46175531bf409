"""Errors that this package raises.

GrammarError(ValueError)
├── InvalidGrammar        a grammar that cannot be obeyed; the text names the place and the reason
└── UnreadableVocabulary  a model whose tokens are not known as bytes
"""


class GrammarError(ValueError):
    """Base class of all errors of this package."""


class InvalidGrammar(GrammarError):
    """A grammar that cannot be obeyed: malformed, unsatisfiable, too large, or with a keyword that is not supported."""


class UnreadableVocabulary(GrammarError):
    """A model whose tokens are not known as bytes, so that no grammar can be applied. The text names the file."""
