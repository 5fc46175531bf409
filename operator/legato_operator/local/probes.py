"""HTTP probes, like the kubelet's."""

import json
from dataclasses import dataclass

import aiohttp

LONGEST_MESSAGE = 200


@dataclass(frozen=True)
class Answer:
    passed: bool
    message: str  # the answer of the process, or why it is missing


async def probe(session: aiohttp.ClientSession, url: str, timeout: float) -> Answer:
    """Sends one GET, which passes with any 2xx or 3xx."""
    try:
        limit = aiohttp.ClientTimeout(total=timeout)
        async with session.get(url, timeout=limit, allow_redirects=False) as answer:
            text = await answer.text(errors="replace")
    except TimeoutError:
        return Answer(False, f"no answer within {timeout:g} s")
    except aiohttp.ClientError as error:
        return Answer(False, str(error) or type(error).__name__)
    return Answer(answer.status < 400, _message(text.strip())[:LONGEST_MESSAGE])


def _message(text: str) -> str:
    """Returns an answer's text, or the `why` of a JSON answer, which is meant for people."""
    try:
        said = json.loads(text)
    except ValueError:
        return text
    return str(said["why"]) if isinstance(said, dict) and "why" in said else text
