"""Traces of gateway and workers, sent to an OpenTelemetry collector.

`switch` says from the environment whether they are on, and imports nothing; `spans` is the one door to OpenTelemetry.
"""
