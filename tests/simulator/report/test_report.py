"""The report: one file that holds every result and needs no other."""

import re
from html.parser import HTMLParser

import pytest
from simulation_results import result

from legato_simulator.baselines import BASELINES
from legato_simulator.baselines.baseline import Settings
from legato_simulator.baselines.comparison import Comparison, Entry
from legato_simulator.baselines.fixed import Fixed
from legato_simulator.report import report


class Checked(HTMLParser):
    """Collects tags and text, and fails at a tag that is not closed."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.text = [], set(), ""
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag not in ("meta", "br", "line", "path"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)

    def handle_data(self, data):
        self.text += data


def _comparison(*workloads):
    entries = []
    for at, workload in enumerate(workloads):
        entries.append(Entry(result("legato", workload, gpu_hours=3.21 + at, attainment=0.9876)))
        for i, name in enumerate(BASELINES):
            made = result(name, workload, gpu_hours=2.5 + at + i / 100, attainment=0.9 + 0.01 * i)
            entries.append(Entry(made, Settings(1, 1, Fixed), workload))
        entries.append(Entry(result("fixed", workload, gpu_hours=9.87), Settings(7, 8, Fixed), "elsewhere"))
    return Comparison(tuple(entries))


def test_every_result_and_every_plot_of_every_workload_is_there():
    made = _comparison("steady", "step")
    page = report.html(made, "T")
    text = Checked(page).text
    for entry in made.entries:
        assert entry.name in text
        assert f"{entry.result.gpu_hours:.2f}" in text
        assert f"{100 * entry.result.attainment:.1f} %" in text
    plots = ["Load", "Arrivals", "Queue", "KV pressure", "Prefill pool", "Decode pool", "Attainment so far"]
    figures = re.findall(r"<b>([^<]*)</b> <span class=\"unit\">([^<]+)<", page)
    assert [name for name, _ in figures] == plots * 2
    assert page == report.html(_comparison("steady", "step"), "T")


def test_it_needs_nothing_from_elsewhere_and_no_script():
    page = report.html(_comparison("steady"), "T")
    assert not Checked(page).tags & {"script", "link", "img", "iframe"}
    assert not re.search(r"(src|href)=|url\(|@import|https?:", page)


@pytest.mark.parametrize("where", ["title", "scaler", "workload", "tuned_on", "pool"])
def test_text_is_escaped(where):
    bad = '<script>alert("x")</script>&'
    usual = {"title": "T", "scaler": "s", "workload": "w", "tuned_on": "", "pool": "decode"}
    given = usual | {where: bad}
    made = result(given["scaler"], given["workload"], reversals={given["pool"]: 1.0})
    page = report.html(Comparison((Entry(made, Settings(1, 1, Fixed), given["tuned_on"]),)), given["title"])
    assert bad not in page
    assert bad in Checked(page).text
