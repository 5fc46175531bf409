"""The switch for traces: the standard environment variables of OpenTelemetry, which is not imported here.

https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from legato_protocol.settings.flags import SettingsError

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"  # of all signals: traces go to its /v1/traces
TRACES_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"  # the whole address
SAMPLER: Final = "OTEL_TRACES_SAMPLER"
SAMPLER_ARGUMENT: Final = "OTEL_TRACES_SAMPLER_ARG"
_DISABLED: Final = "OTEL_SDK_DISABLED"
_EXPORTER: Final = "OTEL_TRACES_EXPORTER"
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL: Final = "http/protobuf"


def is_on(environ: Mapping[str, str]) -> bool:
    """True if an endpoint is set and tracing is not disabled. Raises SettingsError for an unsupported value."""
    name = next((name for name in (TRACES_ENDPOINT, ENDPOINT) if environ.get(name)), "")
    if not name or environ.get(_DISABLED, "").lower() == "true" or environ.get(_EXPORTER, "").lower() == "none":
        return False
    check_endpoint(environ[name], name)
    protocol = next((variable for variable in _PROTOCOLS if environ.get(variable)), "")
    if protocol and environ[protocol] != _PROTOCOL:
        raise SettingsError(f"{protocol}: not supported: {environ[protocol]} ({_PROTOCOL} only)")
    return True


def check_endpoint(text: str, name: str) -> None:
    """Raises SettingsError with the variable's name unless `text` is an HTTP address."""
    try:
        address = urlsplit(text)
        valid = address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise SettingsError(f"{name}: not a valid address: {text} (http://HOST:PORT or https://HOST:PORT)")
