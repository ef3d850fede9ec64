"""The report's page as a reader meets it, in a real browser with the network off.

Screenshots go to build/screenshots, to be looked at.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from deepgat.lab.experiments import Store
from deepgat.lab.experiments.spec import specs_of
from deepgat.lab.paper.experiments import dataset_statistics
from deepgat.lab.paper.lemmas import check_lemmas
from deepgat.lab.report.attention_drift import find_drifts
from deepgat.lab.report.html_page import html_page, page_data
from deepgat.lab.report.sections import Report, make_report, make_section
from deepgat.training.config_file import parse_config

from chromium import Page
from runs import HOSTILE, make_store

pytestmark = pytest.mark.browser
SHOTS = Path(__file__).parents[2] / "build" / "screenshots"
SECTIONS = ["table2", "depth", "degradation", "over-smoothing", "attention-kl",
            "nearest-neighbor", "table1", "lemmas", "runs", "failures", "about"]  # fmt: skip
PANELS = ["micro-f1", "energy", "relative-energy", "neighbor-distance", "effective-rank",
          "same-class-attention"]  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return make_store(tmp_path_factory.mktemp("runs") / "store")


@pytest.fixture(scope="module")
def report(store: Store) -> Report:
    common = [
        make_section("table1", dataset_statistics(["csbm"])),
        make_section("lemmas", list(check_lemmas(quick=True))),
    ]
    records, failures = list(store.records()), list(store.failures().values())
    find = partial(find_drifts, store.folder)
    return make_report(f"A name {HOSTILE}", records, failures, find, common)


@pytest.fixture(scope="module")
def path(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html_page(page_data(report)), encoding="utf-8")
    return path


@pytest.fixture
def page(browser: Page, path: Path) -> Iterator[Page]:
    """The page just opened; whatever a test did to it, it may not have complained."""
    browser.complaints.clear()
    browser.requests.clear()
    browser.media()
    browser.open(path)
    yield browser
    assert browser.complaints == []
    strangers = [url for url in browser.requests if not url.startswith(("file:", "data:"))]
    assert strangers == []


def texts(page: Page, selector: str) -> list[str]:
    return page.run(
        f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)"
    )


def choose(page: Page, selector: str, value: object) -> None:
    """Set a control as a user does."""
    page.run(
        f"(() => {{ const control = document.querySelector({json.dumps(selector)});"
        f"control.value = {json.dumps(value)};"
        "for (const name of ['input', 'change']) control.dispatchEvent(new Event(name)); })()"
    )
    page.settle()


def fits(page: Page) -> bool:
    """Whether nothing has to be scrolled sideways."""
    return page.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_every_section_and_figure_is_there(page: Page, report: Report):
    assert page.run("[...document.querySelectorAll('section')].map(s => s.id)") == SECTIONS
    expected = [
        chart["name"]
        for section in next(iter(report.families.values()))
        for table in section.tables
        for chart in table.charts
    ]
    assert len(set(expected)) > 8
    assert {f"smoothing-{name}" for name in PANELS} <= set(expected)
    found = page.run("[...document.querySelectorAll('figure')].map(f => f.id)")
    assert set(found) == {f"figure-{name}" for name in expected}
    marks = page.run(
        "[...document.querySelectorAll('figure')].map(f => [f.id, f.querySelectorAll("
        "'.plot svg .mark, .plot svg .line').length])"
    )
    assert [name for name, count in marks if not count] == []


def test_ids_are_unique(page: Page):
    ids = page.run("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))


def test_what_a_run_says_stays_text(page: Page):
    assert HOSTILE in page.run("document.title")
    assert page.run("document.images.length") == 0
    assert page.run("document.scripts.length") == 2
    (error,) = [text for text in texts(page, "#failures td") if "RuntimeError" in text]
    assert error == f"RuntimeError: {HOSTILE}"


def test_tables_sort_both_ways_with_gaps_last(page: Page):
    column = "#table-table2 tbody tr td:nth-child(7)"
    page.click("#table-table2 th:nth-child(7) button")
    rising = [float(text.split()[0]) for text in texts(page, column)]
    assert rising == sorted(rising)
    assert len(set(rising)) > 1
    assert page.run(
        "document.querySelector('#table-table2 th:nth-child(7)').getAttribute('aria-sort')"
    ) == "ascending"  # fmt: skip
    page.click("#table-table2 th:nth-child(7) button")
    assert [float(text.split()[0]) for text in texts(page, column)] == rising[::-1]
    for _ in range(2):  # the differences, which Cora has none of
        page.click("#table-table2 th:nth-child(9) button")
        found = texts(page, "#table-table2 tbody tr td:nth-child(9)")
        numbers = [text for text in found if text != "–"]
        assert 0 < len(numbers) < len(found)
        assert found[: len(numbers)] == numbers


def test_a_number_tells_how_it_was_made(page: Page, store: Store):
    page.click("#table-table2 .number")
    assert page.run("document.querySelector('dialog').open")
    ids = texts(page, "dialog tbody tr td:first-child")
    assert len(ids) == 3
    assert "seeds 0, 1, 2" in page.run("document.querySelector('dialog p').textContent")
    page.screenshot(SHOTS / "provenance.png")
    for place, beginning in enumerate(ids, start=1):
        page.click(f"dialog tbody tr:nth-child({place}) .number")
        text = page.run("document.querySelector('.toml').textContent")
        assert specs_of(parse_config(text))[0].signature == store.find(beginning)
        facts = texts(page, "dialog dd")
        assert store.find(beginning) in facts
        assert "0123456789abcdef" in facts
        assert f"a machine {HOSTILE}" in facts
    page.press("Escape")
    assert not page.run("document.querySelector('dialog').open")


def test_hovering_shows_the_numbers(page: Page):
    plot = "#figure-depth-cs .plot svg"
    page.hover(plot, across=0.02)
    tip = page.run("document.querySelector('#figure-depth-cs .tip').innerText")
    assert "L = 2" in tip
    assert "DeepGAT DP, published" in tip
    assert "91.5" in tip
    assert "91.0 ± 2.5 (91.5, -0.5)" in tip
    page.screenshot(SHOTS / "hover.png")
    page.hover("#figure-attention-kl-cs .plot svg", across=0.99)
    tip = page.run("document.querySelector('#figure-attention-kl-cs .tip').innerText")
    assert tip.startswith("layer = 15")
    assert page.run("document.querySelector('#figure-depth-cs .tip').hidden")


def test_the_keyboard_reads_a_figure(page: Page):
    page.run("document.querySelector('#figure-depth-cs .plot svg').focus()")
    tip = "document.querySelector('#figure-depth-cs .tip').innerText"
    for key, title in (("ArrowRight", "L = 2"), ("ArrowRight", "L = 4"), ("End", "L = 15")):
        page.press(key)
        assert page.run(tip).startswith(title)
    page.press("Enter")
    assert page.run("document.querySelector('dialog').open")


def test_the_legend_switches_a_system_off_everywhere(page: Page):
    lines = "document.querySelectorAll('#figure-{} .line[data-key=\"GAT DP\"]').length"
    figures = ("depth-cs", "nearest-neighbor-cs-train", "smoothing-energy")
    assert [page.run(lines.format(name)) for name in figures] == [1, 1, 1]
    button = "#figure-depth-cs .legend li:nth-child(3) button"
    assert page.run(f"document.querySelector('{button}').textContent") == "GAT DP"
    for expected in (0, 1):
        page.click(button)
        assert [page.run(lines.format(name)) for name in figures] == [expected] * 3
        pressed = page.run(f"document.querySelector('{button}').getAttribute('aria-pressed')")
        assert pressed == ("true" if expected else "false")


def test_the_slider_chooses_the_depth(page: Page):
    layers = "document.querySelectorAll('#figure-smoothing-energy .plot svg .mark').length"
    seen = []
    for place in (0, 1, 2):
        choose(page, "#network-depth", place)
        seen.append((page.run("document.querySelector('output').textContent"), page.run(layers)))
    assert seen == [("L = 2", 4 * 2), ("L = 4", 4 * 4), ("L = 15", 4 * 15)]
    choose(page, "#over-smoothing select", "cs")
    assert page.run("document.querySelectorAll('#over-smoothing figure').length") == len(PANELS)


def test_other_settings_can_be_chosen(page: Page):
    assert texts(page, "#family option") == ["authors", "paper"]
    title = "document.querySelector('#table-table2 caption').textContent"
    assert "authors protocol" in page.run(title)
    choose(page, "#family select", 1)
    assert "honest protocol" in page.run(title)
    assert page.run("document.querySelectorAll('#figure-depth-cs .line').length") == 4


def test_all_runs_can_be_searched(page: Page, store: Store):
    assert "Show all" in page.run("document.querySelector('#table-all-runs .more').textContent")
    choose(page, "input[type=search]", "cora gat sd")
    rows = "#table-all-runs tbody tr"
    assert set(texts(page, f"{rows} td:nth-child(2)")) == {"cora"}
    assert set(texts(page, f"{rows} td:nth-child(3)")) == {"DeepGAT SD", "GAT SD"}


def test_dark_mode(page: Page):
    light = page.run("getComputedStyle(document.body).backgroundColor")
    page.media(prefers_color_scheme="dark")
    dark = page.run("getComputedStyle(document.body).backgroundColor")
    assert light == "rgb(255, 255, 255)"
    assert max(map(int, dark.removeprefix("rgb(").rstrip(")").split(","))) < 60
    for name in SECTIONS:
        page.screenshot(SHOTS / "dark" / f"{name}.png", selector=f"#{name}")


def test_wide_and_narrow_screens(page: Page):
    page.screenshot(SHOTS / "wide" / "page.png")
    for width, folder in ((1280, "wide"), (768, "middle"), (375, "narrow")):
        page.resize(width, 812)
        page.settle()
        assert fits(page), f"{width} pixels are too few"
        for name in SECTIONS:
            page.screenshot(SHOTS / folder / f"{name}.png", selector=f"#{name}")
    page.screenshot(SHOTS / "narrow" / "page.png")
    page.hover("#figure-depth-cs .plot svg", across=0.9)
    tip = "document.querySelector('#figure-depth-cs .tip').getBoundingClientRect()"
    assert page.run(f"{tip}.left") >= 0
    assert page.run(f"{tip}.right") <= 375
    page.screenshot(SHOTS / "narrow" / "hover.png")
    page.click("#table-table2 .number")
    assert page.run("document.querySelector('dialog').getBoundingClientRect().right") <= 375
    page.screenshot(SHOTS / "narrow" / "provenance.png")


def test_no_label_is_cut_off(page: Page):
    """Texts of figures lie within their figure, at any width."""
    for width in (1280, 375):
        page.resize(width, 812)
        page.settle()
        outside = page.run(
            "[...document.querySelectorAll('figure svg text')].filter(text => {"
            "const inner = text.getBoundingClientRect();"
            "const outer = text.closest('figure').getBoundingClientRect();"
            "return inner.left < outer.left || inner.right > outer.right;"
            "}).map(text => `${text.closest('figure').id}: ${text.textContent}`)"
        )
        assert outside == []


def test_print_and_reduced_motion(page: Page):
    page.media(media="print")
    assert page.run("getComputedStyle(document.querySelector('nav')).display") == "none"
    page.media(prefers_reduced_motion="reduce")
    assert page.run("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
