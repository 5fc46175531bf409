"""How a service's token is made, replaced and healed, one step at a time. Pure.

A rotation has three steps, each of which waits until the pods have read the one before: the `next` token is written
beside the one in use, and all take it; it comes into use, and all show it; the `previous` one is dropped. How far it
is stands in the Secret. One that somebody edited is turned into a rotation to what they wrote, and one that was lost
is written again, where this operator has seen it.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from legato_operator.manifests import secret
from legato_operator.manifests.placement import PodPlacement
from legato_operator.manifests.secret import ServiceToken
from legato_operator.observing.observed import Observed, Pod
from legato_operator.planning.actions import SetToken
from legato_protocol.service_tokens import token_id

STARTING = 120.0  # seconds for which a pod that has not said what it reads holds up a step: it may have read before

# Reasons of Events.
TOKEN_LOST, TOKEN_RESTORED, TOKEN_EDITED = "TokenLost", "TokenRestored", "TokenEdited"
TOKEN_ROTATING, TOKEN_ROTATED = "TokenRotating", "TokenRotated"
WARNINGS = (TOKEN_LOST, TOKEN_RESTORED, TOKEN_EDITED)


def steps(observed: Observed, placement: PodPlacement) -> Iterator[SetToken]:
    """The next step, if it is time for one."""
    held = observed.token
    if not observed.has_token:
        yield _make(observed)
    elif held is None:
        return  # who looked only cared whether there is one
    elif held.edited:
        yield _edited(observed, held)
    elif not held.written:  # by an operator that knew of no rotation
        yield _write(observed, held)
    elif held.previous:
        if _all(observed, held, lambda ids: ids[:1] == (token_id(held.token),)):
            yield _write(observed, replace(held, previous=""), TOKEN_ROTATED, "the previous one is not taken any more")
    elif held.next:
        if _all(observed, held, lambda ids: token_id(held.next) in ids):
            used = replace(held, token=held.next, next="", previous=held.token, since=observed.now)
            yield _write(observed, used)
    elif note := _due(observed, held, placement):
        answered = secret.requested(observed.annotations)
        yield _write(observed, replace(held, answered=answered), TOKEN_ROTATING, note, fresh="next")


def _make(observed: Observed) -> SetToken:
    """Of a Secret that is not there or holds no token: the one that the pods know, or another."""
    if known := observed.remembered_token:
        return _write(observed, known, TOKEN_RESTORED, "its Secret was lost or held no token, and is as it was")
    answered = secret.requested(observed.annotations)
    made = ServiceToken("", since=observed.now, answered=answered)
    if observed.pods:
        note = "its Secret was lost or held no token; pods follow the new one within three minutes"
        return _write(observed, made, TOKEN_LOST, note, fresh="token")
    return _write(observed, made, fresh="token")


def _edited(observed: Observed, held: ServiceToken) -> SetToken:
    """What somebody wrote is the next, and all that show the one before are understood meanwhile."""
    known = observed.remembered_token
    if known is not None and token_id(known.token) == held.written:
        note = "somebody wrote another token, which all pods take before it is shown"
        return _write(observed, replace(known, next=held.token, answered=held.answered), TOKEN_EDITED, note)
    return _write(observed, replace(held, since=observed.now), TOKEN_EDITED, "somebody wrote another token")


def _due(observed: Observed, held: ServiceToken, placement: PodPlacement) -> str:
    """Why it is time for another one; empty while it is not."""
    asked = secret.requested(observed.annotations)
    if asked and asked != held.answered:
        return "as requested: all pods take the next token before it is shown"
    if placement.token_lifetime and observed.now - held.since >= placement.token_lifetime:
        return "it is old enough: all pods take the next token before it is shown"
    return ""


def _all(observed: Observed, held: ServiceToken, holds: Callable[[tuple[str, ...]], bool]) -> bool:
    """Whether all pods know that far. One that cannot say is not asked for longer than it may take to read."""
    pods = [pod for pod in observed.pods if not (pod.failed or pod.lost)]
    waited = observed.now - held.changed >= STARTING
    return all(holds(pod.tokens) or (waited and not _answers(pod)) for pod in pods)


def _answers(pod: Pod) -> bool:
    return pod.ready or pod.state is not None or pod.report is not None


def _write(observed: Observed, held: ServiceToken, reason: str = "", note: str = "", fresh: str = "") -> SetToken:
    return SetToken(replace(held, changed=observed.now), fresh, reason, note)
