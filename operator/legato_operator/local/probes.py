"""HTTP probes as the kubelet makes them."""

from dataclasses import dataclass

import httpx

LONGEST_MESSAGE = 200


@dataclass(frozen=True)
class Answer:
    passed: bool
    message: str  # what the process says, or why there is no answer


async def probe(client: httpx.AsyncClient, url: str, timeout: float) -> Answer:
    """One GET: passed on any 2xx or 3xx."""
    try:
        answer = await client.get(url, timeout=timeout)
    except httpx.TimeoutException:
        return Answer(False, f"no answer within {timeout:g} s")
    except httpx.HTTPError as error:
        return Answer(False, str(error) or type(error).__name__)
    return Answer(answer.status_code < httpx.codes.BAD_REQUEST, answer.text.strip()[:LONGEST_MESSAGE])
