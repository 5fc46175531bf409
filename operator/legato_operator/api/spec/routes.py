"""`spec.gateway.httpRoute` and `.ingress`: routes for clients outside the cluster."""

from typing import Annotated

from pydantic import Field

from legato_operator.api.spec.manifest_part import ManifestPart, ObjectName

_LABEL = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
Hostname = Annotated[str, Field(pattern=rf"^([*]\.)?{_LABEL}(\.{_LABEL})*$", max_length=253)]
Hostnames = Annotated[list[Hostname], Field(max_length=16)]
RouteAnnotations = Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=32)]


class ParentReference(ManifestPart):
    """A Gateway, or one of its listeners."""

    name: ObjectName
    """The Gateway."""
    namespace: Annotated[str, Field(pattern=rf"^{_LABEL}$")] | None = None
    """Its namespace; the service's if not given."""
    section_name: ObjectName | None = None
    """The Gateway's listener; every listener that admits the route if not given."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """The port of the Gateway's listeners; every listener that admits the route if not given."""


class HTTPRoutePart(ManifestPart):
    """A route through Gateways of the Gateway API."""

    parent_refs: Annotated[list[ParentReference], Field(min_length=1, max_length=16)]
    """The Gateways: name, namespace, sectionName and port."""
    hostnames: Hostnames = []
    """Hosts whose requests are for this service; every host that the Gateways' listeners admit if not given."""
    annotations: RouteAnnotations = {}
    """Annotations of the HTTPRoute."""


class IngressPart(ManifestPart):
    """A route through an ingress controller."""

    hosts: Annotated[Hostnames, Field(min_length=1)]
    """Hosts whose requests are for this service."""
    class_name: ObjectName | None = None
    """The IngressClass; the cluster's default if not given."""
    tls_secret: ObjectName | None = None
    """The Secret with the certificate for the hosts. If not given, the controller decides about TLS."""
    annotations: RouteAnnotations = {}
    """Annotations of the Ingress, which controllers read settings from."""
