"""The report: one file that holds every result and needs no other."""

import re
from html.parser import HTMLParser

import pytest
from simulation_results import result

from legato_cli.simulation import report
from legato_cli.simulation.comparison import Comparison, Entry
from legato_cli.simulation.rivals import RIVALS
from legato_cli.simulation.rivals.fixed import Fixed

VOID = {"meta", "br", "line", "path"}


class Checked(HTMLParser):
    """Knows tags, and fails at one that is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def read(page: str) -> Checked:
    found = Checked()
    found.feed(page)
    found.close()
    assert not found.open
    return found


def comparison(*workloads: str) -> Comparison:
    entries = []
    for at, workload in enumerate(workloads):
        entries.append(Entry(result("legato", workload, gpu_hours=3.21 + at, attainment=0.9876)))
        entries.extend(
            Entry(
                result(name, workload, gpu_hours=2.5 + at + i / 100, attainment=0.9 + 0.01 * i), Fixed(1, 1), workload
            )
            for i, name in enumerate(RIVALS)
        )
        entries.append(Entry(result("fixed", workload, gpu_hours=9.87), Fixed(7, 8), "elsewhere"))
    return Comparison(tuple(entries))


def test_every_result_is_there():
    made = comparison("steady", "step")
    text = read(report.html(made, "Title")).text
    for entry in made.entries:
        assert entry.name in text
        assert f"{entry.result.gpu_hours:.2f}" in text
        assert f"{100 * entry.result.attainment:.1f} %" in text


def test_every_plot_of_every_workload_is_there():
    figures = re.findall(
        r"<b>([^<]*)</b> <span class=\"unit\">([^<]*)<", report.html(comparison("steady", "step"), "T")
    )
    assert len(figures) == 14
    assert [name for name, _ in figures[:7]] == [
        "Load",
        "Arrivals",
        "Queue",
        "KV pressure",
        "Prefill pool",
        "Decode pool",
        "Attainment so far",
    ]
    assert all(unit for _, unit in figures)


def test_first_scaler_is_plotted_beside_the_best_rival():
    """`dynamo` has 96 % and the fewest hours of those that reach 95 %: `clairvoyant` is no rival."""
    page = report.html(comparison("steady"), "T")
    best = comparison("steady").best("steady")
    assert best is not None
    assert f'<i class="two"></i>{best.name}</li>' in page
    assert '<i class="two"></i>clairvoyant' not in page


def test_single_result_is_a_report_too():
    page = read(report.html(Comparison((Entry(result()),)), "T"))
    assert "Overview" not in page.text
    assert "legato" in page.text


def test_needs_nothing_from_elsewhere_and_no_script():
    page = report.html(comparison("steady"), "T")
    assert not [tag for tag, _ in read(page).seen if tag in ("script", "link", "img", "iframe")]
    assert not re.search(r"(src|href)=|url\(|@import|https?:", page)


@pytest.mark.parametrize("where", ["title", "about", "scaler", "workload", "tuned_on", "pool"])
def test_text_is_escaped(where):
    bad = '<script>alert("x")</script>&'
    given = {"title": "T", "about": "A", "scaler": "s", "workload": "w", "tuned_on": "", "pool": "decode"} | {
        where: bad
    }
    found = result(given["scaler"], given["workload"], reversals={given["pool"]: 1.0})
    page = report.html(Comparison((Entry(found, Fixed(1, 1), given["tuned_on"]),)), given["title"], given["about"])
    assert bad not in page
    assert bad in read(page).text


def test_same_comparison_same_bytes():
    assert report.html(comparison("steady"), "T") == report.html(comparison("steady"), "T")


def test_a_miss_does_not_depend_on_colour():
    page = report.html(Comparison((Entry(result(attainment=0.4)),)), "T")
    assert '<span class="miss">✗ 40.0 %</span>' in page
