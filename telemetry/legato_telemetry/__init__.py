"""Traces of gateway and workers, sent to an OpenTelemetry collector.

`switch` reads from the environment whether tracing is on, and imports nothing; only `spans` imports OpenTelemetry.
"""
