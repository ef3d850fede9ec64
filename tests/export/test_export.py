"""``model.export`` and ``deepgat export``: the files, what they tell, and what is refused."""

import json
import re
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from cases import Case

import deepgat
from deepgat import UserError
from deepgat.cli import main
from deepgat.export import export_model, formats
from tiny import tiny_dataset

ROOT = Path(__file__).parents[2]
BLOCK = Path(__file__).with_name("exported_runs.py")


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    training = {"epochs": 2, "device": "cpu"}
    data = tiny_dataset()
    small = {"num_layers": 1, "hidden_channels": 2, "training": training}
    deepgat.fit(data, "sage", seed=0, **small).save(folder)
    return folder


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["deepgat", *words])
    with pytest.raises(SystemExit) as exit_:
        main()
    return exit_.value.code


@pytest.mark.slow
def test_what_an_onnx_file_tells(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    Case("gcn", {"num_layers": 1}).model().export(tmp_path / "model.onnx")
    proto = onnx.load(str(tmp_path / "model.onnx"))
    about = {each.key: each.value for each in proto.metadata_props}
    assert json.loads(about["class_names"]) == ["red", "green", "blue"]
    assert (about["system"], about["layers"]) == ("gcn", "[1]")
    assert {each.domain for each in proto.opset_import} == {""}
    assert str(ROOT).encode() not in proto.SerializeToString()
    sizes = proto.graph.input[0].type.tensor_type.shape.dim
    assert [each.dim_param or each.dim_value for each in sizes] == ["nodes", 6]


def test_the_command(saved, tmp_path, monkeypatch, capsys):
    out = tmp_path / "model.pt2"
    assert not command(monkeypatch, "export", str(saved), "-o", str(out))
    told = capsys.readouterr().err
    assert "pt2 with the inputs x, edge_index; logits differ from the model's by at most" in told
    assert re.search(r"by at most \d(\.\d)?e-\d\d|by at most 0;", told.replace("\n", " "))

    files = {formats.METADATA: ""}
    program = torch.export.load(out, extra_files=files)
    about = json.loads(files[formats.METADATA])
    assert about["deepgat"] == deepgat.__version__
    assert about["system"] == "sage"
    assert about["class_names"] == ["0", "1", "2"]
    assert about["inputs"]["x"] == {"dtype": "float32", "shape": ["nodes", 6]}
    assert about["outputs"]["layer_logits"] == [1, "nodes", 3]
    operators = {str(n.target) for n in program.graph.nodes if n.op == "call_function"}
    foreign = {name for name in operators if not name.startswith(("aten.", "<built-in function"))}
    assert not foreign
    with zipfile.ZipFile(out) as archive:
        for name in archive.namelist():
            assert str(ROOT).encode() not in archive.read(name), name
            assert not archive.read(name).startswith(b"\x80"), f"{name} is a pickle"

    data = tiny_dataset()
    model = deepgat.Model.load(saved)
    found = program.module()(edge_index=data.graph.edge_index, x=data.graph.x)
    torch.testing.assert_close(found["logits"], model.outputs(data).logits, rtol=1e-5, atol=1e-5)
    shares = model.predict(data).probabilities
    torch.testing.assert_close(found["probabilities"], shares, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("-o", "model.pt2", "--format", "onx"), "unknown format 'onx': did you mean 'onnx'?"),
        (("-o", "model.txt"), "model.txt does not tell its format: name it as .pt2 or .onnx"),
        (("-o", "folder", "--format", "pt2"), "folder is a folder: expected the name of a file"),
        (("-o", "file/model.pt2"), "file is not a writable folder"),
    ],
)
def test_refused_before_the_model_is_read(words, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    assert command(monkeypatch, "export", "no-model", *words) == 2
    assert sentence in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "model.pt2").exists()


def test_what_is_not_installed(tmp_path, monkeypatch):
    def without(name: str) -> object:
        return None if name.startswith("onnx") else find_spec(name)

    model = Case("gcn").model()
    monkeypatch.setattr(formats, "find_spec", without)
    with pytest.raises(UserError, match=r"onnx and onnxscript, which are .*deepgat\[export\]"):
        model.export(tmp_path / "model.onnx")
    assert not any(tmp_path.iterdir())


def test_the_oracle_is_refused(tmp_path):
    with pytest.raises(UserError, match="oracle reads the true label of every node"):
        Case("oracle").model().export(tmp_path / "model.pt2")


def test_a_program_that_computes_something_else_is_not_written(tmp_path, monkeypatch):
    def wrong(data: bytes) -> formats.Run:
        run = formats._read_pt2(data)
        return lambda inputs: {name: x + 0.01 for name, x in run(inputs).items()}

    kinds = {"pt2": formats.FORMATS["pt2"]._replace(read=wrong)}
    monkeypatch.setattr("deepgat.export.FORMATS", kinds)
    model = Case("mlp").model()
    with pytest.raises(RuntimeError, match=r"differ from the model's by 0\.01"):
        export_model(model.network, model.card, tmp_path / "model.pt2")
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_many_hops_of_labels_are_noted(tmp_path):
    case = Case("deepgat", {"num_layers": 4, "label_hops": 4})
    found = case.model().export(tmp_path / "model.pt2")
    assert found.inputs == ("x", "edge_index", "known_labels")
    assert "n × n" in found.notes[0]


@pytest.mark.slow
def test_the_examples_of_the_documentation(tmp_path, monkeypatch):
    """The first example writes the files; the others run where deepgat cannot be imported."""
    pytest.importorskip("onnxruntime")
    text = (ROOT / "docs" / "export.md").read_text()
    (first,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    others = re.findall(r"```py\n(.*?)```", text, re.DOTALL)
    assert len(others) >= 2
    monkeypatch.chdir(tmp_path)
    exec(compile(first, "export.md", "exec"), {})
    block = BLOCK.read_text().split("def runner")[0]
    for code in others:
        script = block + code + "\nassert 'deepgat' not in sys.modules\n"
        run = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stderr
        assert "confidence" in run.stdout
