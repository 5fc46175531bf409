"""The page in a real browser, under load: with a keyboard alone, on a phone, and without a token."""

import asyncio
import contextlib

import browser
import required
from gateway_process import gateway_process

from legato_protocol.model_files import model_digest

PROGRAM = browser.program()
pytestmark = required.program(*browser.PROGRAMS)


@contextlib.asynccontextmanager
async def _gateway(lab, model, folder):
    """A gateway process in front of scripted workers, under load; the URL of its control port."""
    async with contextlib.AsyncExitStack() as stack:
        workers = lab.pools(1, 2, model=model_digest.digest(model), pace=0.005)
        for worker in workers:
            await stack.enter_async_context(worker)
        flag = "--local-prefill-below-tokens=0"
        gateway = await stack.enter_async_context(gateway_process(folder, model, flag, workers=workers))
        load = asyncio.create_task(_load(gateway.client))
        try:
            yield gateway.url("control")
        finally:
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)


async def _load(client):
    """Three clients that ask one after the other."""

    async def ask(number):
        while True:
            body = {"model": "m", "prompt": f"{number} " * 40, "max_tokens": 60}
            await client.post("/v1/completions", json=body, timeout=60)

    await asyncio.gather(*(ask(number) for number in range(3)))


@contextlib.asynccontextmanager
async def _page(lab, model, folder, fragment):
    async with (
        _gateway(lab, model, folder) as url,
        browser.opened(PROGRAM, folder / "profile", f"{url}/ui{fragment}") as page,
    ):
        await page.resize(1100, 900)
        yield page


async def test_page_shows_the_fleet_and_requests_under_load_and_hides_its_token(lab, chat_model, tmp_path):
    async with _page(lab, chat_model, tmp_path, f"#token={lab.token}") as page:
        words = ["p0", "d0", "d1", "ready", "decode, 2 ranks"]  # once the gateway has reached them
        await page.until("document.querySelectorAll('#workers tr').length === 3")
        fleet = "document.querySelector('#workers').innerText"
        await page.until(f"{words}.every(word => {fleet}.includes(word))")
        await page.until("document.querySelectorAll('#recent .bar .handoff').length > 0")
        await page.until("/under way/.test(document.querySelector('#readout').textContent)")
        await page.until("document.querySelectorAll('#chart path').length >= 4")
        assert lab.token not in await page.value("location.href")
        assert not page.problems
        host = (await page.value("location.origin")) + "/"
        assert all(url.startswith((host, "data:")) for url in page.requested), page.requested
        assert not any(lab.token in url.partition("#")[0] for url in page.requested)


async def test_the_playground_works_with_the_keyboard_alone_and_names_the_workers(lab, chat_model, tmp_path):
    async with _page(lab, chat_model, tmp_path, f"#token={lab.token}") as page:
        await page.until("document.querySelectorAll('#model option').length === 1")
        way = await page.tab_to("prompt")
        assert way[0] == "Skip to the fleet"
        assert "cursor" in way
        await page.type("hello ")
        assert [(await page.tab_to(id))[-1] for id in ("model", "temperature", "most", "send")][-1] == "send"
        await page.press("Enter")
        await page.until("document.querySelector('#answer').textContent.length > 20")
        served = await page.until("document.querySelector('#served').textContent")
        assert served.startswith("Served by p0 → d")
        numbers = await page.until("(t => t.includes('tokens/s') && t)(document.querySelector('#numbers').textContent)")
        assert "first token after" in numbers
        assert await page.value("document.querySelector('#answer').getAttribute('aria-busy')") == "false"


async def test_escape_stops_an_answer(lab, chat_model, tmp_path):
    async with _page(lab, chat_model, tmp_path, f"#token={lab.token}") as page:
        await page.until("document.querySelectorAll('#model option').length === 1")
        await page.value("document.querySelector('#most').value = 3000; document.querySelector('#prompt').focus()")
        await page.press("Enter", modifiers=2)
        await page.until("document.querySelector('#answer').textContent.length > 5")
        assert await page.value("document.querySelector('#send').disabled")
        await page.press("Escape")
        await page.until("document.querySelector('#numbers').textContent.startsWith('stopped; first token')")
        assert await page.value("document.querySelector('#stop').disabled")


async def test_arrow_keys_read_the_timeline(lab, chat_model, tmp_path):
    async with _page(lab, chat_model, tmp_path, f"#token={lab.token}") as page:
        await page.until("document.querySelector('#readout').textContent.includes('decode: 2 ready')")
        await page.tab_to("cursor")
        for _ in range(3):
            await page.press("ArrowLeft")
        value, spoken, shown = await page.value(
            "[cursor.value, cursor.getAttribute('aria-valuetext'), readout.textContent]"
        )
        assert value == "997"
        assert "under way" in spoken
        assert spoken == shown


async def test_a_phone_needs_no_sideways_scrolling(lab, chat_model, tmp_path):
    async with _page(lab, chat_model, tmp_path, f"#token={lab.token}") as page:
        await page.resize(360, 740, dark=True)
        await page.until("document.querySelectorAll('#recent li').length > 3")
        assert await page.value(browser.NARROW)
        assert await page.value(browser.WIDE) == 0
        await page.value("document.querySelectorAll('#recent details').forEach(each => each.open = true)")
        assert await page.value(browser.NARROW)
        assert await page.value(browser.WIDE) == 0


async def test_without_a_token_the_page_asks_for_one_and_shows_nothing(lab, chat_model, tmp_path):
    async with _page(lab, chat_model, tmp_path, "") as page:
        await page.until("!document.querySelector('#login').hidden")
        assert await page.value("document.querySelector('#main').hidden")
        assert await page.value("document.querySelectorAll('#workers tr').length") == 0
        assert await page.value("document.activeElement.id") == "token"
        await page.type(lab.token)
        await page.press("Enter")
        await page.until("document.querySelectorAll('#workers tr').length === 3")
