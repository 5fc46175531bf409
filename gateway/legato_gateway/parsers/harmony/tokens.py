"""The special tokens of harmony, and their form in the text of an answer.

https://cookbook.openai.com/articles/openai-harmony
"""

from typing import Final

from legato_gateway.request import TOKEN_MARK

FAMILY: Final = "Harmony"
START: Final = "<|start|>"
CHANNEL: Final = "<|channel|>"
MESSAGE: Final = "<|message|>"
CONSTRAIN: Final = "<|constrain|>"
END: Final = "<|end|>"
CALL: Final = "<|call|>"
RETURN: Final = "<|return|>"
ALL: Final = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)
STOPS: Final = (RETURN, CALL)  # each of them ends an answer; `END` only ends a message

ASSISTANT: Final = "assistant"
ANALYSIS: Final = "analysis"
COMMENTARY: Final = "commentary"
FINAL: Final = "final"
FUNCTIONS: Final = "functions."  # before the name of a function that a message is to


def in_template(template: str) -> bool:
    """True if a chat template shows its model this format."""
    return all(part in template for part in (START, f"{CHANNEL}{ANALYSIS}{MESSAGE}"))


def marked(text: str) -> str:
    """Returns a text, all of whose special tokens are meant as such, in the form in which an answer's are read.

    A model may also write the text of a special token in ordinary tokens, which has no meaning.
    """
    for token in ALL:
        text = text.replace(token, TOKEN_MARK + token)
    return text
