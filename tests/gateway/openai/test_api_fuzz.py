"""Random requests for all paths of `/openapi.json` are no fault of ours, whatever is in them."""

import pytest
import random_requests
from budget import times

REQUESTS = 400  # of each seed


@pytest.mark.parametrize("seed", range(times(1)))
@pytest.mark.parametrize("template", [None, "{{ tools }} <tool_call>"])
async def test_random_requests_are_answered(make, seed, template):
    gateway = make(template=template)
    api = (await gateway.http.get("/openapi.json")).json()
    requests = list(random_requests.Fuzz(api, "tiny", seed).requests(REQUESTS))
    answers = await random_requests.run(gateway.http, iter(requests), 4)
    assert not answers.faults, answers.faults[:3]
    assert all(generation.cancelled.is_set() for generation in gateway.relay.generations)
    gateway.budget.check_integrity()
    assert gateway.budget.used == 0
    counts = [counts for path, counts in answers.statuses.items() if path in WORK]
    assert len(counts) == len(WORK)
    assert all(each.get(200, 0) >= 5 and each.get(400, 0) >= 5 for each in counts), answers.statuses


WORK = {
    *("POST /v1/chat/completions", "POST /v1/completions", "POST /v1/messages", "POST /v1/messages/count_tokens"),
    *("POST /tokenize", "POST /detokenize", "POST /v1/responses", "POST /v1/responses/input_tokens"),
}
