"""A cluster on one machine: objects in memory, pods as processes.

Only pods are implemented, no other controller of Kubernetes. `store` keeps objects, `kubelet` runs pods, `cluster`
combines both.
"""
