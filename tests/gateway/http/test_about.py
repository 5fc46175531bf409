"""A gateway's description of itself: probes, version, load, and its API."""

from importlib import metadata

from scripted_gateway import keyed

from legato_gateway.clients.identify import Clients

PROBES = [
    ("GET", "/readyz"),
    ("GET", "/health"),
    ("HEAD", "/health"),
    ("GET", "/ping"),
    ("POST", "/ping"),
]  # and vLLM's


async def test_probes_say_whether_requests_are_served(gateway):
    for why, status in (("", 200), ("no worker is connected", 503)):
        gateway.status.why = why or None
        assert [(await gateway.http.request(*probe)).status_code for probe in PROBES] == [status] * len(PROBES)
        assert (await gateway.http.get("/readyz")).json() == {"ready": not why, "why": why}
        assert (await gateway.http.get("/healthz")).status_code == 200
    assert gateway.entries == [], "probes are not logged"


async def test_with_api_keys_only_probes_are_open(tmp_path, make):
    gateway = make(clients=Clients(keyed(tmp_path, a={})))
    for method, path in (("GET", "/version"), ("GET", "/load"), ("POST", "/tokenize"), ("POST", "/detokenize")):
        assert (await gateway.http.request(method, path, json={})).status_code == 401
    for path in ("/health", "/ping", "/healthz", "/readyz", "/docs", "/openapi.json"):
        assert (await gateway.http.get(path)).status_code == 200


async def test_version_and_load(gateway):
    assert (await gateway.http.get("/version")).json() == {"version": metadata.version("legato")}
    gateway.status.under_way = 3
    assert (await gateway.http.get("/load")).json() == {"server_load": 3}


SERVED = {
    "get": {"/v1/models", "/v1/models/{name}", "/version", "/load", "/healthz", "/readyz", "/health", "/ping"},
    "post": {
        *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages", "/v1/messages/count_tokens"),
        *("/v1/responses", "/v1/responses/input_tokens", "/tokenize", "/detokenize", "/ping"),
    },
}


async def test_the_description_knows_every_path(gateway, recwarn):
    paths = (await gateway.http.get("/openapi.json")).json()["paths"]
    assert not [warning for warning in recwarn if "Operation ID" in str(warning.message)]
    described = [(path, method) for path, methods in paths.items() for method in methods]
    for method, served in SERVED.items():
        assert served <= {path for path, of in described if of == method}
    for path, method in described:
        if "{id}" in path:
            continue  # nothing is stored here
        answer = await gateway.http.request(method, path.replace("{name}", "tiny"))
        assert answer.status_code not in (404, 405), path
        takes = paths[path][method].get("requestBody", {}).get("content", {})
        assert (answer.status_code == 200) != bool(takes) or path == "/v1/embeddings", path
        assert "422" not in paths[path][method]["responses"], "what is wrong is told with 400"
