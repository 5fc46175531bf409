"""Resource requests and limits of a container."""

from legato_operator.api.spec.manifest_part import ManifestPart
from legato_operator.api.spec.scalars import Amounts


class Resources(ManifestPart):
    requests: Amounts = {}
    """Resource requests. `cpu` of a worker also sets its number of compute threads."""
    limits: Amounts = {}
    """Resource limits, enforced on Kubernetes."""

    @property
    def given(self) -> bool:
        """True if any request or limit is set."""
        return bool(self.requests or self.limits)
