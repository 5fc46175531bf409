"""Discovery of workers: names and addresses, and their changes. Nothing about health.

Only `kubernetes` talks to the Kubernetes API. It is imported on demand, as its client costs 10 MiB.
"""
