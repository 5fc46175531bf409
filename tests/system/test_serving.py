"""One manifest on a laptop: a service is described, and edited while it runs."""

from typing import Any


def test_it_is_described_in_words(service: Any) -> None:
    def described() -> str | None:
        told = service.command("describe").stdout
        return told if "  Ready is True (AllReady) since " in told else None

    told = service.until(described, "it is ready, whatever befell it in other tests")
    assert f"  serves smollm2 at {service.url}/v1\n" in told
    assert "  decode: 1 of 1 ready, 1 desired\n" in told
    assert any(line.split()[0] == "test-decode-0" and line.endswith("  ready") for line in told.splitlines()[1:])
    assert "  AllReady" in told.split("Events:\n")[1]


def test_edits_that_cannot_be_served_are_rejected_and_change_nothing(service: Any) -> None:
    epochs = {worker["worker"]: worker["epoch"] for worker in service.workers()}
    service.edit(("blockSize: 16", "blockSize: sixteen"), told="change rejected")
    service.edit(("blockSize: sixteen", "blockSize: 16"), (".gguf", ".gone"), told="no such file or folder")
    service.edit((".gone", ".gguf"))
    assert {worker["worker"]: worker["epoch"] for worker in service.workers()} == epochs
