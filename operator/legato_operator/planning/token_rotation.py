"""Creates, rotates and repairs a service's token, one step at a time. Pure.

A rotation has three steps, each of which waits until the pods have read the step before: the `next` token is written
and accepted by all; it comes into use and is shown by all; the `previous` one is dropped. The Secret records the step.
A token that somebody edited starts a rotation to the new value. A lost token is restored if this operator remembers it.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from legato_operator.manifests import secret
from legato_operator.manifests.placement import PodPlacement
from legato_operator.manifests.secret import ServiceToken
from legato_operator.observing.observed import Observed, Pod
from legato_operator.planning.actions import SetToken
from legato_protocol.security.service_tokens import token_id

STARTING = 120.0  # seconds for which a pod that reports no tokens delays a step: it may have read them earlier

# Reasons of Events.
TOKEN_LOST, TOKEN_RESTORED, TOKEN_EDITED = "TokenLost", "TokenRestored", "TokenEdited"
TOKEN_ROTATING, TOKEN_ROTATED = "TokenRotating", "TokenRotated"
WARNINGS = (TOKEN_LOST, TOKEN_RESTORED, TOKEN_EDITED)


def steps(observed: Observed, placement: PodPlacement) -> Iterator[SetToken]:
    """Yields the next step, if one is due."""
    token = observed.token
    if not observed.has_token:
        yield _make(observed)
    elif token is None:
        return  # the observer only checked that a token exists
    elif token.edited:
        yield _edited(observed, token)
    elif not token.written:  # by an operator without rotation
        yield _write(observed, token)
    elif token.previous:
        if _all(observed, token, lambda ids: ids[:1] == (token_id(token.token),)):
            yield _write(observed, replace(token, previous=""), TOKEN_ROTATED, "the previous one is no longer accepted")
    elif token.next:
        if _all(observed, token, lambda ids: token_id(token.next) in ids):
            used = replace(token, token=token.next, next="", previous=token.token, since=observed.now)
            yield _write(observed, used)
    elif note := _due(observed, token, placement):
        answered = secret.requested(observed.annotations)
        yield _write(observed, replace(token, answered=answered), TOKEN_ROTATING, note, fresh="next")


def _make(observed: Observed) -> SetToken:
    """Returns the first token, or the one that pods know if the Secret was lost or emptied."""
    if known := observed.remembered_token:
        return _write(observed, known, TOKEN_RESTORED, "its Secret was lost or held no token, and is as it was")
    answered = secret.requested(observed.annotations)
    made = ServiceToken("", since=observed.now, answered=answered)
    if observed.pods:
        note = "its Secret was lost or held no token; pods accept the new one within three minutes"
        return _write(observed, made, TOKEN_LOST, note, fresh="token")
    return _write(observed, made, fresh="token")


def _edited(observed: Observed, token: ServiceToken) -> SetToken:
    """Makes the edited value the next token; the token before the edit stays accepted meanwhile."""
    known = observed.remembered_token
    if known is not None and token_id(known.token) == token.written:
        note = "somebody wrote another token, which all pods accept before it is shown"
        return _write(observed, replace(known, next=token.token, answered=token.answered), TOKEN_EDITED, note)
    return _write(observed, replace(token, since=observed.now), TOKEN_EDITED, "somebody wrote another token")


def _due(observed: Observed, token: ServiceToken, placement: PodPlacement) -> str:
    """Returns the reason why a rotation is due, or an empty text."""
    asked = secret.requested(observed.annotations)
    if asked and asked != token.answered:
        return "as requested: all pods accept the next token before it is shown"
    if placement.token_lifetime and observed.now - token.since >= placement.token_lifetime:
        return "it is old enough: all pods accept the next token before it is shown"
    return ""


def _all(observed: Observed, token: ServiceToken, holds: Callable[[tuple[str, ...]], bool]) -> bool:
    """True if the tokens of every pod satisfy `holds`. Silent pods only count while they may be starting."""
    pods = [pod for pod in observed.pods if not (pod.failed or pod.lost)]
    waited = observed.now - token.changed >= STARTING
    return all(holds(pod.tokens) or (waited and not _answers(pod)) for pod in pods)


def _answers(pod: Pod) -> bool:
    return pod.ready or pod.state is not None or pod.report is not None


def _write(observed: Observed, token: ServiceToken, reason: str = "", note: str = "", fresh: str = "") -> SetToken:
    return SetToken(replace(token, changed=observed.now), fresh, reason, note)
