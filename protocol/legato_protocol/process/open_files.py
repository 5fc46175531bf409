"""The limit of open files: raised as far as a process may, and checked before anything fails because of it."""

import resource
from typing import Final

from legato_protocol.settings.flags import SettingsError

MOST: Final = 1 << 20  # more than a process here can use; "unlimited" cannot be set as a number
LEAST: Final = 256  # for any process: its sockets, pipes and files, and some connections


def raise_limit() -> int:
    """Raises the soft limit to the hard one and returns it. Raises SettingsError if that is below LEAST."""
    soft, hard = (
        MOST if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    if soft < min(hard, MOST):
        soft = min(hard, MOST)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    if soft < LEAST:
        raise SettingsError(
            f"the limit of open files is {soft}, and at least {LEAST} are needed: raise it (ulimit -n {LEAST})"
        )
    return soft
