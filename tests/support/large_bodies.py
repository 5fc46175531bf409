"""Request bodies that are much to read for what they say: each shape in any size, as a path and bytes.

None of them can be served by a model whose context is a few thousand tokens.
"""

from collections.abc import Callable, Iterator

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
_USER = b'{"role":"user","content":"hi"}'

Part = Callable[[int], bytes]  # the JSON of the field in question, of about so many bytes


def body(name: str, size: int) -> tuple[str, bytes]:
    """Path and body of that shape, of `size` bytes or a little less."""
    room = size - 256
    if name in _PROMPTS:
        return COMPLETIONS, b'{"model":"m","prompt":' + _PROMPTS[name](room) + b"}"
    if name in _MESSAGES:
        return CHAT, b'{"model":"m","messages":' + _MESSAGES[name](room) + b"}"
    if name in _FIELDS:
        return CHAT, b'{"model":"m","messages":[' + _USER + b"]," + _FIELDS[name](room) + b"}"
    return CHAT, _WHOLE[name](room)


def _repeated(item: bytes, last: bytes | None = None) -> Part:
    """A list of `item`, again and again."""
    end = item if last is None else last
    return lambda size: b"[" + (item + b",") * ((size - len(end)) // (len(item) + 1)) + end + b"]"


def _nested(inner: Part) -> Part:
    return lambda size: b"[" + inner(size) + b"]"


def _field(name: bytes, inner: Part) -> Part:
    return lambda size: b'"' + name + b'":' + inner(size)


def _text(character: bytes) -> Part:
    return lambda size: b'"' + character * (size // len(character)) + b'"'


def _message(before: bytes, inner: Part) -> Part:
    return lambda size: b'[{"role":"user",' + before + inner(size) + b"}]"


def _object(pair: Callable[[int], bytes]) -> Part:

    def pairs(size: int) -> Iterator[bytes]:
        number = 0
        while size > 0:
            made = pair(number)
            size -= len(made) + 1
            number += 1
            yield made

    return lambda size: b"{" + b",".join(pairs(size)) + b"}"


def _keys(size: int) -> bytes:
    return _object(lambda number: b'"k%d":0' % number)(size)


_PROMPTS: dict[str, Part] = {
    "prompt of -1": _repeated(b"-1"),
    "prompt of mixed types": _repeated(b'1,"a",null,[2]'),
    "prompt of ids, the last a string": _repeated(b"7", b'"a"'),
    "prompt of valid ids": _repeated(b"7"),
    "prompt of short strings": _repeated(b'"a"'),
    "prompt of one-token lists": _repeated(b"[7]"),
    "prompt of empty lists": _repeated(b"[]"),
    "prompt of one list of -1": _nested(_repeated(b"-1")),
    "prompt of one list of ids": _nested(_repeated(b"1234")),
    "prompt of one text": _text(b"x"),
    "prompt of one text of escapes": _text(b"\\u00e9"),
    "prompt of one text of wide characters": _text("🎼".encode()),
    "prompt of one number": lambda size: b"9" * size,
}

_MESSAGES: dict[str, Part] = {
    "messages of {}": _repeated(b"{}"),
    "messages with no parts": _repeated(b'{"role":"user","content":[]}'),
    "messages with one part": _repeated(b'{"role":"user","content":[{"type":"text","text":"a"}]}'),
    "messages of unknown roles": _repeated(b'{"role":"king"}'),
    "message with a long role": lambda size: b'[{"content":"hi","role":' + _text(b"x")(size) + b"}]",
    "message of one text": _message(b'"content":', _text(b"x")),
    "parts of {}": _message(b'"content":', _repeated(b"{}")),
    "parts with a type alone": _message(b'"content":', _repeated(b'{"type":"text"}')),
    "parts with empty text": _message(b'"content":', _repeated(b'{"type":"text","text":""}')),
    "tool calls of {}": _message(b'"content":"hi","tool_calls":', _repeated(b"{}")),
}

_FIELDS: dict[str, Part] = {
    "tools of functions": _field(b"tools", _repeated(b'{"type":"function","function":{"name":"f"}}')),
    "response format of many keys": _field(b"response_format", _keys),
    "stop of strings": _field(b"stop", _repeated(b'"a"')),
    "logit bias": _field(b"logit_bias", _object(lambda number: b'"%d":1' % number)),
    "seed of many digits": _field(b"seed", lambda size: b"9" * size),
    "the same key": lambda size: b",".join([b'"stop":["a"]'] * (size // 13)) + b',"n":0',
}

_WHOLE: dict[str, Part] = {
    "unknown keys alone": _keys,
    "an unknown key with empty lists": lambda size: b'{"metadata":' + _repeated(b"[]")(size) + b"}",
    "lists within lists": lambda size: b"[" * size,
    "objects within objects": lambda size: b'{"a":' * (size // 5),
    "lists within lists in a prompt": lambda size: b'{"model":"m","prompt":' + b"[" * (size // 2) + b"]" * (size // 2),
    "a list": _repeated(b"0"),
    "no JSON": lambda size: b"x" * size,
    "no UTF-8 at the end": lambda size: b'{"model":"' + b"x" * size + b'\xff"}',
    "NaN at the end": lambda size: b'{"metadata":"' + b"x" * size + b'","temperature":NaN}',
    "blanks": lambda size: b" " * size,
}

SHAPES = (*_PROMPTS, *_MESSAGES, *_FIELDS, *_WHOLE)
