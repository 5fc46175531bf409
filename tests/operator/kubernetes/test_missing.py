"""What only a cluster can know of a manifest is a condition with a reason, and an Event, on a real API server."""

from legato_operator.cluster import uid_of

HUB = {"repo": "a/b", "revision": "0e9e39f249a16976918f6564b8830bc894c89659", "tokenSecret": "hub"}


async def test_service_without_its_secret_starts_when_that_is_made(s, operator, build):
    await s.make(build(model={"source": {"huggingFace": HUB}}))
    await s.wait(lambda: s.condition("Ready"), ("False", "NotFound"))
    assert await s.message() == "spec.model.source.huggingFace.tokenSecret: Secret hub not found"
    await s.wait(lambda: s.has_warning("NotFound"))
    assert not await s.pods("decode")
    assert not await s.exists("Deployment", "demo-gateway")
    item = {"metadata": {"name": "hub"}, "stringData": {"token": "x"}}
    assert (await s.call("POST", "secrets", item))[0] == 201
    await s.wait(s.ready)


async def test_what_the_api_server_refuses_is_told_and_touches_nothing_that_serves(s, operator, build):
    await s.make(build())
    await s.wait(s.ready)
    before = {name: uid_of(pod) for name, pod in (await s.pods("decode")).items()}
    await s.make(build(decode={"template": {"spec": {"priorityClassName": "urgent"}}}))
    await s.wait(lambda: s.condition("Progressing"), ("False", "APIRefused"))
    assert "no PriorityClass with name urgent was found" in await s.message()
    await s.wait(lambda: s.has_warning("APIRefused"))
    assert {name: uid_of(pod) for name, pod in (await s.pods("decode")).items()} == before
    assert await s.ready()
    await s.make(build())
    await s.wait(lambda: s.condition("Progressing"), ("False", "UpToDate"))
