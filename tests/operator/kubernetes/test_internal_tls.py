"""What a real API server makes of changes of TLS between a service's processes."""

import pytest

from legato_operator.errors import Invalid

PERMISSIVE = {"secret": "x"}
STRICT = {"secret": "x", "mode": "Strict"}


async def test_strict_is_reached_and_left_by_way_of_permissive(s, build):
    """Pods with and without TLS could not reach each other while one takes the place of the other."""
    await s.make(build())
    await _refused(s, STRICT)
    for allowed in (PERMISSIVE, STRICT, STRICT | {"secret": "y"}):
        await s.edit("InferenceService", "demo", _to(allowed))
    await _refused(s, None)
    for allowed in (PERMISSIVE, None):
        await s.edit("InferenceService", "demo", _to(allowed))
    await s.make(build(internalTLS=STRICT), "sealed")


def _to(tls):
    def change(service):
        service["spec"] = {key: value for key, value in service["spec"].items() if key != "internalTLS"}
        service["spec"] |= {"internalTLS": tls} if tls else {}

    return change


async def _refused(s, tls):
    with pytest.raises(Invalid, match="by way of mode Permissive"):
        await s.edit("InferenceService", "demo", _to(tls))
