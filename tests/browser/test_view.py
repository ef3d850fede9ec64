"""The page of a model as a reader meets it, in a real browser with the network off.

Screenshots go to build/screenshots/view, to be looked at; the frame times of a graph of 20,000
nodes to build/screenshots/view/frames.json.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import deepgat
from deepgat import Model, NodeDataset, SplitNodes
from deepgat.data import csbm_graph

from chromium import Page

pytestmark = pytest.mark.browser
SHOTS = Path(__file__).parents[2] / "build" / "screenshots" / "view"
HOSTILE = "</script><script>alert(1)</script><!--<img src=x onerror=alert(1)>"
DRIVER = "GL Driver Message (OpenGL, Performance"
"""What a browser without a graphics card says of reading pixels."""


def dataset(nodes: int, classes: int, **options: float) -> NodeDataset:
    split = "fractions:0.2/0.2:0"
    graph = SplitNodes(split)(csbm_graph(nodes, classes, 16, **options))
    ids = tuple(f"person-{node:05}" for node in range(nodes))
    names = tuple(f"group {'ABCDEFGHIJ'[c]}" for c in range(classes))
    return NodeDataset(
        "people", "People", (graph,), 16, classes, False, split, node_ids=ids, class_names=names
    )


@pytest.fixture(scope="module")
def model() -> Model:
    data = dataset(400, 4, separation=1.0)
    return deepgat.fit(data, "deepgat", num_layers=4, training={"epochs": 40, "device": "cpu"})


@pytest.fixture(scope="module")
def path(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model.view(tmp_path_factory.mktemp("view") / "model.html")


@pytest.fixture
def page(browser: Page, path: Path) -> Iterator[Page]:
    """The page just opened; whatever a test does to it, it may not complain or ask for anything."""
    yield from opened(browser, path)


def opened(browser: Page, path: Path) -> Iterator[Page]:
    browser.complaints.clear()
    browser.requests.clear()
    browser.media()
    browser.open(path, 1380, 900)
    yield browser
    assert [text for text in browser.complaints if DRIVER not in text] == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []


def text(page: Page, selector: str) -> str:
    return page.run(f"document.querySelector({json.dumps(selector)}).textContent")


def find(page: Page, query: str, *keys: str) -> None:
    """Search as a user of the keyboard does."""
    page.press("/")
    page.send("Input.insertText", text=query)
    page.settle()
    for key in keys:
        page.press(key)


def widths(page: Page) -> list[str]:
    return page.run(
        "[...document.querySelectorAll('#neighborhood .edge')].map(e => e.style.strokeWidth)"
    )


def slide(page: Page, place: int) -> None:
    page.run(
        f"(() => {{ const s = document.getElementById('layer-slider'); s.value = {place};"
        "s.dispatchEvent(new Event('input')); })()"
    )
    page.settle()


def fits(page: Page) -> bool:
    return page.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_every_part_is_there(page: Page, model: Model):
    sections = page.run("[...document.querySelectorAll('section')].map(s => s.id)")
    assert sections == ["map", "node", "confusion", "depth", "leaderboard", "about"]
    assert "People" in page.run("document.title")
    assert f"{100 * model.scores['test']:.1f}% test" in text(page, "#summary")
    assert page.run("document.querySelectorAll('#canvas canvas').length") > 0
    assert page.run("document.querySelectorAll('#depth figure').length") == 4
    ids = page.run("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    assert "GAT" not in text(page, "#edge-text")


def test_the_map_is_drawn(page: Page, tmp_path: Path):
    drawn = """(() => {
        sigma.refresh();
        const gl = document.querySelector('canvas.sigma-nodes').getContext('webgl2');
        const [w, h] = [gl.drawingBufferWidth, gl.drawingBufferHeight];
        const pixels = new Uint8Array(4 * w * h);
        gl.readPixels(0, 0, w, h, gl.RGBA, gl.UNSIGNED_BYTE, pixels);
        return pixels.filter((value, i) => i % 4 === 3 && value > 0).length;
    })()"""
    assert page.run(drawn) > 400


def test_the_search_finds_a_node_by_keyboard(page: Page):
    find(page, "person-0012")
    options = (
        "[...document.querySelectorAll('#search-list [role=option] bdi')].map(e => e.textContent)"
    )
    assert page.run(options) == [f"person-0012{k}" for k in range(8)]
    active = "document.activeElement.getAttribute('aria-activedescendant')"
    assert page.run(active) == "found-0"
    page.press("ArrowDown")
    assert page.run(active) == "found-1"
    page.screenshot(SHOTS / "search.png")
    page.press("Enter")
    assert text(page, "#node-title") == "Node person-00121"
    assert page.run("decodeURIComponent(location.hash)") == "#node=person-00121"
    find(page, "nobody")
    assert "No node" in text(page, "#search-list")
    page.press("Escape")
    assert page.run("document.getElementById('search-list').hidden")
    assert text(page, "#node-title") == "Node person-00121"


def test_a_link_opens_the_page_at_its_node(page: Page, path: Path):
    page.send("Page.navigate", url=f"{path.resolve().as_uri()}?#node=person-00007")
    page.wait_for("Page.loadEventFired")
    page.settle()
    assert text(page, "#node-title") == "Node person-00007"


def test_the_node_panel_is_what_the_model_says(page: Page, model: Model):
    node = 121
    found = model.explain(node)
    names = model.training_data.class_names
    find(page, "person-00121", "Enter")
    labels = page.run(
        "[...document.querySelectorAll('.strip button')].map(b => b.getAttribute('aria-label'))"
    )
    for layer, label in enumerate(labels):
        share = found.layers[layer][0]
        assert label.startswith(f"Layer {layer}: {names[int(share.argmax())]}, ")
    turns = sum(found.classes[k] != found.classes[k - 1] for k in range(1, 5))
    expected = {0: "No layer changed", 1: "Changed its mind once"}
    assert text(page, "#mind").startswith(expected.get(turns, f"Changed its mind {turns} times"))
    assert text(page, "#node .facts").count(names[int(model.training_data.graph.y[node])]) >= 1
    itself = float(found.attention[3, 0])
    cell = page.run("document.querySelector('#neighbors tbody .num').textContent")
    assert float(cell.rstrip("%")) == pytest.approx(100 * itself, abs=0.6)


def test_the_slider_changes_the_widths_of_the_edges(page: Page):
    find(page, "person-00121", "Enter")
    seen = []
    for place in range(5):
        slide(page, place)
        seen.append(tuple(widths(page)))
        assert text(page, "#layer-output") == f"layer {place}"
        page.screenshot(SHOTS / f"layer-{place}.png", selector="#node")
    assert len(set(seen)) == 5
    assert set(seen[0]) == {"1.2px"}  # before the first layer there is no attention
    assert "no attention" not in text(page, "#edge-text")
    page.click(".strip li:first-child button")
    assert text(page, "#layer-output") == "layer 0"
    assert tuple(widths(page)) == seen[0]
    page.click("input[name=hops][value='2']")
    assert len(widths(page)) > len(seen[0])
    slide(page, 4)
    page.screenshot(SHOTS / "two-hops.png", selector="#node")


def test_a_neighbour_is_one_key_away(page: Page):
    find(page, "person-00121", "Enter")
    page.run("document.querySelector('.dot.hop1').focus()")
    said = page.run("document.activeElement.getAttribute('aria-label')")
    page.press("Enter")
    assert text(page, "#node-title") == f"Node {said.split(':')[0]}"


def test_a_cell_of_the_confusion_matrix_selects_its_nodes(page: Page, model: Model):
    data = model.training_data
    found = model.predict(data).labels
    y, test = data.graph.y, data.graph.test_mask
    cell = page.run(
        "(() => { const b = document.querySelector('.matrix .bad');"
        "return [Number(b.dataset.label), Number(b.dataset.predicted), Number(b.textContent)]; })()"
    )
    nodes = (test & (y == cell[0]) & (found == cell[1])).nonzero().view(-1).tolist()
    assert cell[2] == len(nodes) > 0
    page.click(".matrix .bad")
    assert text(page, "#selection strong") == f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}"
    listed = page.run("[...document.querySelectorAll('#selection .chip')].map(e => e.textContent)")
    assert listed == [data.node_ids[node] for node in nodes[:48]]
    sizes = page.run(
        f"[sigma.getGraph().getNodeAttribute('{nodes[0]}', 'size'),"
        f"sigma.getGraph().getNodeAttribute('{int((~test).nonzero()[0])}', 'size')]"
    )
    assert sizes[0] > sizes[1]
    page.screenshot(SHOTS / "selection.png")
    page.click("#selection .chip")
    assert text(page, "#node-title") == f"Node {listed[0]}"
    page.press("Escape")
    assert page.run("document.getElementById('selection').hidden")


def test_the_map_is_coloured_in_five_ways(page: Page, model: Model):
    seen = set()
    color = "sigma.getGraph().mapNodes((key, node) => node.color).join()"
    for name in ("predicted", "label", "error", "confidence", "settled"):
        page.click(f"input[name=color][value={name}]")
        seen.add(page.run(color))
        counts = page.run(
            "[...document.querySelectorAll('#legend .chip .quiet')].map(e => Number(e.textContent))"
        )
        assert sum(counts) == 400
        page.screenshot(SHOTS / f"map-{name}.png", selector="#map")
    assert len(seen) == 5
    page.click("input[name=color][value=error]")
    page.click("#legend li:nth-child(2) button")
    data = model.training_data
    wrong = int((model.predict(data).labels != data.graph.y).sum())
    assert text(page, "#selection strong") == f"{wrong} nodes"


def test_a_column_selects_who_changed_its_mind(page: Page):
    page.run("document.querySelector('.column').dispatchEvent(new MouseEvent('click'))")
    size = page.run("document.querySelector('.column title').textContent").split(": ")[1]
    assert text(page, "#selection strong") == f"{size} nodes"


def test_pointing_at_the_map_tells_of_a_node_and_a_click_shows_it(page: Page):
    x, y = page.run(
        "(() => { const at = sigma.framedGraphToViewport(sigma.getNodeDisplayData('7'));"
        "const box = document.getElementById('canvas').getBoundingClientRect();"
        "return [box.x + at.x, box.y + at.y]; })()"
    )
    page.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    page.settle()
    tip = text(page, "#map-tip strong")
    assert tip.startswith("person-")
    for kind in ("mousePressed", "mouseReleased"):
        page.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    page.settle()
    assert text(page, "#node-title") == f"Node {tip}"
    assert not page.run("document.getElementById('ring').hidden")


def test_keys_move_the_map(page: Page):
    page.run("document.getElementById('canvas').focus()")
    before = page.run("sigma.getCamera().getState()")
    page.press("ArrowRight")
    page.press("+")
    time.sleep(0.5)
    after = page.run("sigma.getCamera().getState()")
    assert after["x"] > before["x"]
    assert after["ratio"] < before["ratio"]


def test_dark_mode_and_narrow_screens(page: Page):
    page.screenshot(SHOTS / "light.png", whole=True)
    light = page.run("getComputedStyle(document.body).backgroundColor")
    color = page.run("sigma.getGraph().getNodeAttribute('0', 'color')")
    page.media(prefers_color_scheme="dark")
    page.settle()
    dark = page.run("getComputedStyle(document.body).backgroundColor")
    assert min(map(int, light.removeprefix("rgb(").rstrip(")").split(","))) > 200
    assert max(map(int, dark.removeprefix("rgb(").rstrip(")").split(","))) < 60
    assert page.run("sigma.getGraph().getNodeAttribute('0', 'color')") != color
    page.screenshot(SHOTS / "dark.png", whole=True)
    page.media()
    for width in (1380, 768, 390):
        page.resize(width, 844)
        page.settle()
        assert fits(page), f"{width} pixels are too few"
    time.sleep(0.3)
    page.screenshot(SHOTS / "phone.png", whole=True)


def test_names_from_a_graph_stay_text(browser: Page, tmp_path: Path):
    data = dataset(40, 3)
    data = replace(
        data,
        title=f"A graph {HOSTILE}",
        node_ids=tuple(f"{HOSTILE}{node}" for node in range(40)),
        class_names=tuple(f"{HOSTILE} {c}" for c in range(3)),
    )
    model = deepgat.fit(data, "deepgat", num_layers=2, training={"epochs": 2, "device": "cpu"})
    for page in opened(browser, model.view(tmp_path / "page.html")):
        assert HOSTILE in page.run("document.title")
        assert HOSTILE in text(page, "h1")
        find(page, HOSTILE, "ArrowDown", "Enter")
        assert HOSTILE in text(page, "#node-title")
        assert HOSTILE[:30] in text(page, "#legend")
        page.click(".matrix button")
        assert HOSTILE in text(page, "#selection")
        assert page.run("document.images.length") == 0
        assert page.run("document.scripts.length") == 8
        for width in (1380, 390):
            page.resize(width, 844)
            page.settle()
            page.screenshot(SHOTS / f"hostile-{width}.png", whole=True)
            assert fits(page)


@pytest.mark.parametrize(
    ("system", "said"),
    [("mlp", "mlp has no attention"), ("gcn", "is not learned")],
)
def test_a_system_without_attention_says_so(browser: Page, tmp_path: Path, system: str, said: str):
    data = dataset(60, 3)
    model = deepgat.fit(data, system, num_layers=2, training={"epochs": 2, "device": "cpu"})
    for page in opened(browser, model.view(tmp_path / "page.html")):
        assert said in text(page, "#edge-text")
        assert "Only the last layer" in text(page, "#mind")
        assert not page.run("Boolean(document.querySelector('input[value=settled]'))")


def busy(page: Page) -> float:
    """Seconds of CPU time that the page's main thread has used."""
    found = page.send("Performance.getMetrics")["metrics"]
    return next(each["value"] for each in found if each["name"] == "TaskDuration")


def test_twenty_thousand_nodes(browser: Page, tmp_path: Path):
    """Frame times are written down, not judged: machines differ."""
    data = dataset(20_000, 10, degree=10)
    training = {"epochs": 12, "device": "cpu"}
    model = deepgat.fit(data, "deepgat", num_layers=4, hidden_channels=16, training=training)
    path = model.view(tmp_path / "large.html")
    start = time.monotonic()
    for page in opened(browser, path):
        load = time.monotonic() - start
        assert page.run("sigma.getGraph().order") == 20_000
        page.send("Performance.enable", timeDomain="threadTicks")  # CPU time, whoever else runs
        before = busy(page)
        steps = page.run(
            """(async () => {
            const camera = sigma.getCamera(), times = [];
            const frame = () => new Promise(requestAnimationFrame);
            let last = await frame();
            for (let i = 0; i < 90; i++) {
                const angle = i / 10;
                camera.setState({ x: 0.5 + 0.1 * Math.sin(angle), y: 0.5 + 0.1 * Math.cos(angle) });
                const now = await frame();
                times.push(now - last);
                last = now;
            }
            return times;
        })()"""
        )
        frame_cpu = 1000 * (busy(page) - before) / len(steps)
        recolor = page.run(
            "(() => { const start = performance.now();"
            "document.querySelector('input[name=color][value=label]').click();"
            "sigma.refresh(); return performance.now() - start; })()"
        )
        focus = page.run(
            "(() => { const start = performance.now(); change({ node: 123 });"
            "return performance.now() - start; })()"
        )
        steps.sort()
        measured = {
            "file_megabytes": round(path.stat().st_size / 1e6, 1),
            "open_seconds": round(load, 2),
            "frame_milliseconds_median": round(steps[len(steps) // 2], 1),
            "frame_milliseconds_95th": round(steps[int(0.95 * len(steps))], 1),
            "main_thread_milliseconds_per_frame": round(frame_cpu, 1),
            "recolor_milliseconds": round(recolor, 1),
            "show_node_milliseconds": round(focus, 1),
        }
        SHOTS.mkdir(parents=True, exist_ok=True)
        (SHOTS / "frames.json").write_text(json.dumps(measured, indent=1))
        page.screenshot(SHOTS / "large.png")
        print(measured)
