"""Decides the number of workers of each pool from signals of gateways and workers. Pure."""
