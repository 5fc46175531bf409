"""`legato doctor` tells what this machine offers, measured, and never fails over what is missing."""

from legato_cli import doctor, main


def test_every_section_is_told(capsys):
    """With two real processes and real UCX for the hand-off section."""
    assert main.main(["doctor"]) == 0
    told = capsys.readouterr().out
    for title, _ in doctor.SECTIONS:
        assert title in told.splitlines()
    lines = {line.split()[0]: line for line in told.splitlines() if line.startswith("  ")}
    assert "usable; " in lines["TCP"]
    assert "GB/s" in lines["TCP"]
    assert "dtype: Auto" in told
