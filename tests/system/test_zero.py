"""Pools without workers: they go, and come when they are needed. They are paced: processes as ever, quick to start."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import browser
import psutil
import pytest
from paced_fleet import write_profile

from legato_operator.autoscaler.decision import IDLE

PROGRAM = browser.program()


@pytest.fixture(scope="module")
def service(start: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One that is scaled to zero after two seconds, and takes two for a start, for which requests are queued."""
    profile = write_profile(tmp_path_factory.mktemp("profile"), start_seconds=2, perStep=0.02)
    bounds = "prefill: {min: 0, max: 1}, decode: {min: 0, max: 1}"
    scaling = f"{{{bounds}, idleAfter: 2s, scaleDownStabilization: 2s}}"
    return start(scaling=scaling, engine=f", runner: Paced, profile: {profile}")


def _until_zero(service: Any) -> None:
    service.until(lambda: not service.workers(), "the last worker is gone")
    service.until(lambda: _ready(service).startswith("True (ScaledToZero"), "the service is at zero")
    service.until(lambda: "ScaledToZero" in service.command("status").stdout, "`legato status` says so")


def _ready(service: Any) -> str:
    """The last state of the condition in the log, which costs no process."""
    return str(service.log().rpartition("legato: Ready: ")[2])


def test_requests_at_zero_are_queued_and_answered(service: Any) -> None:
    """Also by a gateway that has never seen a worker."""
    _until_zero(service)
    assert service.http.get("/readyz").status_code == 200
    (gateway,) = [p for p in psutil.Process(service.process.pid).children() if "gateway" in p.cmdline()]
    gateway.kill()
    gateway.wait()
    streams = [service.stream(f"Number {i} is", 8, temperature=0) for i in range(20)]
    assert all(stream.result() and stream.finish for stream in streams)


# Scripts: all lines of the timeline, as [classes, path]; and the heights of the marks where a wish changed.
LINES = "[...document.querySelectorAll('#chart path')].map(e => [e.classList.value, e.getAttribute('d')])"
MARKS = "[...document.querySelectorAll('#chart circle.s-decode')].map(e => Number(e.getAttribute('cy')))"


@pytest.mark.skipif(PROGRAM is None, reason=f"no browser: none of {', '.join(browser.PROGRAMS)} is installed")
def test_the_page_shows_the_recommended_sizes_and_why(service: Any, tmp_path: Path) -> None:
    """The dashed line and its marks, each decision with its reason, and both in words for who uses the keyboard."""
    assert PROGRAM is not None
    _until_zero(service)
    (link,) = re.findall(r"http://\S+/ui#token=\S+", service.log())
    url, _, token = link.partition("#token=")
    told = service.http.get(f"{url}/state", headers={"Authorization": f"Bearer {token}"}).json()
    records = told["service"]["scaling"]["records"][::-1]
    expected = [f"{each['pool']} {each['current']} → {each['recommended']}: {each['reason']}" for each in records]
    assert f"decode 1 → 0: {IDLE}" in expected

    async def look() -> None:
        async with asyncio.timeout(90), browser.opened(PROGRAM, tmp_path, link) as page:
            await _check(page, expected)
            assert not page.problems

    asyncio.run(look())


async def _check(page: browser.BrowserPage, expected: list[str]) -> None:
    texts = "[...document.querySelectorAll('#decisions button')].map(e => e.innerText)"
    shown = await page.until(f"(t => t.length === {len(expected)} && t)({texts})")
    assert [text.splitlines()[0].partition(" ")[2].partition(", capped")[0].strip() for text in shown] == expected
    ready, heights = [(0.0, 0.0)], [1.0]
    while ready[-1][1] != heights[-1]:  # the last worker is still ready in the first samples after the decision
        lines, marks = await page.value(f"[{LINES}, {MARKS}]")
        drawn = dict(lines)  # of several lines of one kind, the last one: that of the sizes
        ready, sizes = (_steps(drawn[kind]) for kind in ("line s-decode", "line recommended s-decode"))
        heights = [height for _, height in sizes]
        await asyncio.sleep(0.1)
    assert min(heights) < heights[-1] == marks[-1], "a worker was recommended, and no longer is"
    last = float(drawn["a-active"].rpartition("L")[2].split()[0])
    assert ready[-1][0] == pytest.approx(last, abs=0.1), "up to the last sample, also without a worker"
    await page.value("cursor.value = 1000")
    await page.until("document.querySelector('#readout').textContent.endsWith('decode: 0 ready, 0 recommended')")
    await page.value("cursor.value = 0; cursor.focus()")
    await page.press("Tab")
    assert (await page.value("document.activeElement.innerText")) == shown[0]
    assert (await page.value("cursor.value")) != "0", "the time that is read out is not the decision's"
    await page.until("document.querySelector('#readout').textContent.includes('decode: 0 ready, 0 recommended')")


def _steps(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[MH]([\d.]+)[ V]([\d.]+)", path)]
