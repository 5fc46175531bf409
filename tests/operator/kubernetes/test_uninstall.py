"""What is left when the operator went before its services, and how it goes."""


async def test_service_that_outlived_its_operator_goes_when_its_finalizer_is_taken_away(s, build):
    """As docs/kubernetes.md says: with all that it owned."""
    async with s.operator():
        await s.make(build())
        await s.wait(s.ready)
    await s.cluster.delete(s.ref())
    assert await s.exists("InferenceService", "demo")
    path = f"/apis/serving.legato.dev/v1alpha1/namespaces/{s.name}/inferenceservices/demo"
    body = {"metadata": {"finalizers": None}}
    code, _ = await s.call("PATCH", path, body, merge=True)
    assert code == 200
    for kind in ("InferenceService", "WorkerPool", "Deployment", "Pod", "Service", "Role", "PodDisruptionBudget"):
        await s.wait(lambda kind=kind: s.has_none(kind))
    await s.wait(lambda: s.is_gone("Secret", "demo-token"))
