import subprocess
import sys

import pytest

from legato_protocol.settings.flags import SettingsError
from legato_telemetry import switch

ON = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


@pytest.mark.parametrize(
    ("environ", "on"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        (ON, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://collector/v1/traces"}, True),
        (ON | {"OTEL_SDK_DISABLED": "True"}, False),
        (ON | {"OTEL_SDK_DISABLED": "false"}, True),
        (ON | {"OTEL_TRACES_EXPORTER": "none"}, False),
        (ON | {"OTEL_TRACES_EXPORTER": "otlp"}, True),
        (ON | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True),
        (ON | {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, True),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, False),
    ],
)
def test_traces_are_on_where_an_endpoint_is_set_and_nothing_turns_them_off(environ, on):
    assert switch.is_on(environ) is on


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        (ON | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL: not supported: grpc"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "127.0.0.1:4318"}, "not a valid address: 127.0.0.1:4318 (http://HOST:PORT"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:port"}, "not a valid address"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: not a valid address"),
    ],
)
def test_what_is_not_supported_ends_the_start_and_is_named(environ, said):
    with pytest.raises(SettingsError, match=said.replace("(", r"\(")):
        switch.is_on(environ)


def test_without_an_endpoint_no_process_loads_opentelemetry():
    program = (
        "import sys, legato_gateway.main, legato_engine.server.worker, legato_engine.core.loop\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
