"""A cluster on one machine: objects in memory, pods as processes.

It re-implements no controller of Kubernetes beyond pods. `store` keeps objects, `kubelet` runs pods, `cluster` is both.
"""
