"""A headless Chromium, driven over its DevTools protocol: real keys, real layout, no further dependency."""

import asyncio
import contextlib
import itertools
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--mute-audio")
NARROW = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
WIDE = "[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1).length"
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39, " ": 32}


def program() -> str | None:
    """The path of a Chromium; None without one."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class BrowserPage:
    """One page. `problems` are what its console reported as errors, violations of its policy included."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.problems: list[str] = []
        self.requested: list[str] = []

    async def read(self) -> None:
        """Takes what the browser says, until it is closed."""
        async for text in self._connection:
            told = json.loads(text)
            if "id" in told:
                self._answers.pop(told["id"]).set_result(told)
            elif told["method"] == "Network.requestWillBeSent":
                self.requested.append(told["params"]["request"]["url"])
            elif told["method"] in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.problems.append(json.dumps(told["params"])[:600])

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A command of the protocol, and its result."""
        id = next(self._ids)
        answer = self._answers[id] = asyncio.get_running_loop().create_future()
        await self._connection.send(json.dumps({"id": id, "method": method, "params": params}))
        told = await answer
        assert "error" not in told, told
        result: dict[str, Any] = told["result"]
        return result

    async def value(self, expression: str) -> Any:
        """Returns the value of a script."""
        told = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    async def until(self, expression: str) -> Any:
        """The first value that a script says which is true; nothing announces it."""
        while not (found := await self.value(expression)):  # noqa: ASYNC110 – see above
            await asyncio.sleep(0.05)
        return found

    async def press(self, key: str, modifiers: int = 0) -> None:
        """A key, as a keyboard sends it. Modifiers: 2 is Ctrl, 8 is Shift."""
        named: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": modifiers}
        text = {"text": "\r"} if key == "Enter" and not modifiers else {}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **named, **text)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    async def type(self, text: str) -> None:
        """Text into what has the focus."""
        await self.call("Input.insertText", text=text)

    async def tab_to(self, id: str) -> list[str]:
        """Presses Tab until the element of that id has the focus; the ids (or texts) of all on the way."""
        seen: list[str] = []
        while not seen or seen[-1] != id:
            assert len(seen) < 200, f"Tab never comes to {id}: {seen}"
            await self.press("Tab")
            seen.append(await self.value("document.activeElement.id || document.activeElement.textContent.trim()"))
        return seen

    async def resize(self, width: int, height: int, dark: bool = False) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.call("Emulation.setEmulatedMedia", features=scheme)


@contextlib.asynccontextmanager
async def opened(program: str, folder: Path, url: str) -> AsyncIterator[BrowserPage]:
    """A browser of its own with that page; its profile is in `folder`."""
    quiet = asyncio.subprocess.DEVNULL
    flags = (*FLAGS, "--remote-debugging-port=0", f"--user-data-dir={folder}")
    process = await asyncio.create_subprocess_exec(program, *flags, "about:blank", stdout=quiet, stderr=quiet)
    try:
        while (port := _port(folder / "DevToolsActivePort")) is None:
            assert process.returncode is None, "the browser ended"
            await asyncio.sleep(0.05)
        async with httpx.AsyncClient(trust_env=False) as client:
            targets = (await client.get(f"http://127.0.0.1:{port}/json/list")).json()
        address = next(target["webSocketDebuggerUrl"] for target in targets if target["type"] == "page")
        async with connect(address, max_size=None, proxy=None) as connection:
            page = BrowserPage(connection)
            reading = asyncio.create_task(page.read())
            for domain in ("Page", "Runtime", "Log", "Network"):
                await page.call(f"{domain}.enable")
            await page.call("Page.navigate", url=url)
            yield page
            reading.cancel()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def _port(path: Path) -> int | None:
    """The port that it listens on, once it has reported it."""
    lines = path.read_text().splitlines() if path.exists() else []
    return int(lines[0]) if lines else None
