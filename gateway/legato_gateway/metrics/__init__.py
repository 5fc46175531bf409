"""The gateway's Prometheus metrics, and the collectors of its parts."""
