"""Readiness: when a Service may send requests to a gateway."""


async def test_a_gateway_waits_for_its_first_worker(lab):
    prefill, _ = lab.pools(1, 1)
    async with lab.following([("p0", prefill)]) as gateway:
        await gateway.until(lambda: gateway.fleet.worker("p0").ready)
        assert "no decode worker" in gateway.state.unready()
    async with lab.following([]) as gateway:
        assert "no decode worker" in gateway.state.unready()


async def test_a_gateway_that_lost_its_last_worker_holds_requests_for_the_next(lab):
    async with lab.running(lab.unified(1)) as gateway:
        (worker,) = gateway.workers
        await worker.kill()
        await gateway.until(lambda: not gateway.fleet.worker("u0").ready)
        assert gateway.state.unready() is None
        reader = gateway.submit()
        await worker.start()
        assert (await reader.read()).text == lab.text_of(7, 20)


async def test_a_fresh_gateway_that_may_have_no_worker_holds_requests_for_the_first(lab):
    """Also while that one is listed and does not answer yet."""
    found = lab.listing()
    async with lab.following(found, hold_without_workers=True) as gateway:
        assert gateway.state.unready() is None
        reader = gateway.submit()
        (worker,) = lab.unified(1)
        async with worker:
            await worker.kill()
            found.list(worker)
            await gateway.until(lambda: gateway.fleet.worker("u0") is not None)
            assert gateway.state.unready() is None
            await gateway.until(lambda: gateway.fleet.worker("u0").problem)
            assert gateway.state.unready() is None
            await worker.start()
            assert (await reader.read()).text == lab.text_of(7, 20)


async def test_it_is_not_ready_beside_workers_of_another_model(lab):
    async with lab.unified(1)[0] as worker:
        worker.model = "another"
        found = lab.listing(worker)
        async with lab.following(found, hold_without_workers=True) as gateway:
            await gateway.until(lambda: gateway.fleet.worker("u0").foreign)
            assert "another model" in gateway.state.unready()
            await worker.kill()
            found.list()
            await gateway.until(lambda: not list(gateway.fleet))
            assert gateway.state.unready() is None
