"""The tutorial as a notebook: the same as the page, and it runs from top to bottom."""

import os
import re
import runpy
import shutil
import socket
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAKER = ROOT / "docs" / "hooks" / "tutorial_notebook.py"
NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"
PAGE = ROOT / "docs" / "tutorial.md"


def test_it_is_made_of_the_page():
    made = runpy.run_path(str(MAKER))
    found = made["as_text"](made["notebook"](PAGE.read_text()))
    assert NOTEBOOK.read_text() == found, f"run python {MAKER.relative_to(ROOT)}"


def test_it_is_a_valid_notebook_without_outputs():
    nbformat = pytest.importorskip("nbformat")
    found = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(found)
    cells = [cell for cell in found.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)
    code = "\n".join(cell.source for cell in cells)
    for command in re.findall(r"^deepgat .*$", PAGE.read_text(), re.MULTILINE):
        assert command in code


@pytest.mark.slow
@pytest.mark.lengthy
def test_it_runs(tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    if shutil.which("bash") is None or shutil.which("curl") is None:
        pytest.skip("needs bash and curl")
    (tmp_path / "docs").mkdir()
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"])
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    changed = {  # another port, and a short training: every command runs as it is otherwise
        "localhost:8000": f"localhost:{port}",
        "deepgat serve my-model/": f"deepgat serve my-model/ --port {port}",
        "--keep-graph": "--keep-graph --quality fast --epochs 5",
        'quality="fast"': 'quality="fast", training={"epochs": 5}',
    }
    found = nbformat.read(NOTEBOOK, as_version=4)
    for old, new in changed.items():
        assert any(old in cell.source for cell in found.cells if cell.cell_type == "code")
        for cell in found.cells:
            if cell.cell_type == "code":
                cell.source = cell.source.replace(old, new)
    where = {"metadata": {"path": str(tmp_path / "docs")}}
    nbclient.NotebookClient(found, timeout=300, kernel_name="python3", resources=where).execute()
    said = {
        cell.source: "".join(output.get("text", "") for output in cell.outputs)
        for cell in found.cells
        if cell.cell_type == "code"
    }
    (service,) = [text for source, text in said.items() if "deepgat serve" in source]
    assert '"node":"new-1"' in service.replace(" ", "") or '"id":"new-1"' in service.replace(
        " ", ""
    )
    (new,) = [text for source, text in said.items() if "--new-edges" in source]
    assert "\nnew-2," in new
    assert (tmp_path / "docs" / "my-model" / "README.md").exists()
    assert (tmp_path / "docs" / "my-model.onnx").stat().st_size > 1000
