"""What probes are told: when a Service may send requests to a gateway."""


def test_a_gateway_waits_for_its_first_worker(lab):
    async def test():
        workers = lab.pools(1, 1)
        decode = next(worker for worker in workers if worker.role == "decode")
        async with lab.following([(worker.name, worker) for worker in workers if worker is not decode]) as gateway:
            await gateway.until(lambda: gateway.fleet.worker("p0").ready)
            assert "no decode worker" in gateway.state.unready()

    lab.run(test)


def test_a_gateway_that_lost_its_last_worker_holds_requests_for_the_next(lab):
    async def test():
        async with lab.running(lab.unified(1)) as gateway:
            (worker,) = gateway.workers
            await worker.kill()
            await gateway.until(lambda: not gateway.fleet.worker("u0").ready)
            assert gateway.state.unready() is None
            reader = gateway.submit()
            await worker.start()
            assert (await reader.read()).text == lab.text_of(7, 20)

    lab.run(test)


def test_a_gateway_whose_workers_serve_another_model_now_is_unready(lab):
    async def test():
        async with lab.running(lab.unified(1)) as gateway:
            (worker,) = gateway.workers
            await worker.kill()
            worker._model = "another"
            await worker.start()
            await gateway.until(lambda: gateway.fleet.worker("u0").foreign)
            assert "another model" in gateway.state.unready()

    lab.run(test)
