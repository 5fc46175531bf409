"""The tree of errors, as it is drawn and as clients see it."""

import json

from legato_gateway import errors
from legato_gateway.errors import GatewayError


def family(kind: type[GatewayError]) -> list[type[GatewayError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in family(child))]


def test_permanent_errors_are_4xx_and_say_nothing_of_parts():
    for kind in family(errors.BadRequest):
        error = kind("no", param="x")
        assert 400 <= error.http_status < 500
        said = {"message": "no", "type": "invalid_request_error", "param": "x", "code": error.code}
        assert json.loads(errors.body(error))["error"] == said


def test_refusals_say_when_to_come_back_in_whole_seconds():
    for wait, header in ((0.0, "1"), (2.2, "3"), (1e9, "3600")):
        assert errors.Overloaded("full", reason="r", retry_after=wait).headers["retry-after"] == header
