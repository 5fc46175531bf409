"""Frames from gateways, carried out, and requests that wait before they are scheduled."""
