"""Parts of a service's spec: model, gateway, routes, RDMA, and the scalar types of their fields. Pure."""
