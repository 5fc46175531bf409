"""Formats of structural tags, as clients write them."""

INTEGER = {"type": "json_schema", "json_schema": {"type": "integer", "minimum": 0, "maximum": 99}}
CITY = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/name"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "string"}},
}
ANY_TEXT = {"type": "any_text"}
THINK = {"type": "tag", "begin": "<think>", "content": ANY_TEXT, "end": "</think>"}
F = {"begin": "<f=a>", "content": INTEGER, "end": "</f>"}
G = {"begin": "<f=b>", "content": {"type": "json_schema", "json_schema": CITY}, "end": "</f>"}


def const(value):
    return {"type": "const_string", "value": value}


def tagged(content, end="</t>"):
    return {"type": "tag", "begin": "<t>", "content": content, "end": end}


def triggered(**more):
    return {"type": "triggered_tags", "triggers": ["<f="], "tags": [F, G], **more}


def sequence(*elements):
    return {"type": "sequence", "elements": list(elements)}


def either(*elements):
    return {"type": "or", "elements": list(elements)}


def separated(**more):
    return {"type": "tags_with_separator", "tags": [F, G], "separator": ", ", **more}


def dispatch(**more):
    return {"type": "dispatch", "rules": [["[a]", INTEGER], ["[b]", const("!")]], **more}
