"""AOTInductor packages: what they compute and refuse, and machines that cannot write them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cases import Case, differences, write

from deepgat import UserError
from deepgat.export import export_model, formats, verify
from deepgat.export.checked import checked, checked_numbers
from deepgat.export.compiled import write_package
from deepgat.export.program import Program, SparseProgram, example_inputs
from deepgat.ops import use_backend

BLOCK = Path(__file__).with_name("exported_runs.py")
ROOT = Path(__file__).parents[2]
CASE = Case("deepgat", weights=True, edge_dim=2)
CALLS = """
import torch
from torch._inductor import aoti_load_package
run = aoti_load_package(sys.argv[1])
right = {
    "x": torch.rand(4, 6),
    "edge_index": torch.tensor([[0, 1, 3], [1, 2, 1]]),
    "edge_weight": torch.rand(3),
    "edge_attr": torch.rand(3, 2),
    "known_labels": torch.tensor([0, -1, 2, 1]),
}
wrong = {
    "type of x": {"x": torch.rand(4, 6).double()},
    "width of x": {"x": torch.rand(4, 7)},
    "type of edge_index": {"edge_index": right["edge_index"].int()},
    "rows of edge_index": {"edge_index": torch.zeros(3, 3, dtype=torch.long)},
    "a node below 0": {"edge_index": right["edge_index"] - 1},
    "a node above n": {"edge_index": right["edge_index"] + 1},
    "weights of fewer edges": {"edge_weight": torch.rand(2)},
    "features of more edges": {"edge_attr": torch.rand(4, 2)},
    "labels of fewer nodes": {"known_labels": torch.tensor([0, 1])},
}
assert run(**right)["logits"].isfinite().all()
told = {}
for name, inputs in wrong.items():
    try:
        run(**right | inputs)
    except RuntimeError as error:
        told[name] = str(error).splitlines()[0]
print(json.dumps({"wrong": list(wrong), "told": told, "about": run.loader.get_metadata()}))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """One of a program with every kind of input: a compilation takes most of a minute."""
    folder = tmp_path_factory.mktemp("package")
    write(folder, CASE, ("aoti",))
    return folder / f"{CASE.name}.aoti"


@pytest.mark.slow
@pytest.mark.lengthy
def test_logits_of_all_layers_on_graphs_of_other_sizes(package):
    """One of the graphs has a transposed ``edge_index``."""
    ((name, apart),) = differences(package.parent).items()
    assert name == package.name
    assert apart < 1e-5


@pytest.mark.slow
@pytest.mark.lengthy
def test_inputs_that_a_package_refuses(package):
    """torch's compiled code alone reads them as if they were right, or ends the process."""
    script = BLOCK.read_text().split("def runner")[0] + CALLS
    run = subprocess.run(
        [sys.executable, "-c", script, str(package)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert list(found["told"]) == found["wrong"]
    assert "dtype" in found["told"]["type of x"]
    assert found["about"]["system"] == "deepgat"
    assert json.loads(found["about"]["class_names"]) == ["red", "green", "blue"]
    assert str(ROOT / "src").encode() not in package.read_bytes()  # it tells nothing of this place


@pytest.mark.parametrize("sparse", [False, True])
def test_a_program_with_checks_computes_the_same(sparse):
    model = Case("deepgat", sparse=sparse, weights=True, edge_dim=2).model()
    kind = SparseProgram if sparse else Program
    with torch.no_grad(), use_backend("reference"):
        for inputs in verify.graphs(model.network, model.card, sparse):
            found = kind(model.network, checked=True)(**inputs)
            wanted = kind(model.network)(**inputs)
            for name, x in wanted.items():
                torch.testing.assert_close(found[name], x, rtol=0, atol=1e-6)


def test_checks():
    numbers = torch.tensor([3, 0, 2])
    assert torch.equal(checked_numbers(numbers, 4), numbers)
    for count in (0, 3):
        with pytest.raises(RuntimeError):
            checked_numbers(numbers, count)
    with pytest.raises(RuntimeError):
        checked_numbers(numbers - 1, 4)
    copied = checked(torch.arange(6).view(2, 3).T)
    assert torch.equal(copied, torch.tensor([[0, 3], [1, 4], [2, 5]]))
    assert copied.is_contiguous()


def test_graphs_that_a_file_is_run_on():
    model = Case("gcn", weights=True).model()
    found = [*verify.graphs(model.network, model.card, sparse=False)]
    sizes = {(len(each["x"]), each["edge_index"].size(1)) for each in found}
    assert sizes == set(verify.SIZES)
    largest = example_inputs(model.network, model.card, False, *verify.SIZES[0])
    source, target = edges = largest["edge_index"]
    assert bool((source == target).any())
    assert edges.unique(dim=1).size(1) < edges.size(1)
    assert len(edges.unique()) < len(largest["x"])
    assert bool((largest["edge_weight"] == 0).any())
    assert any(not each["edge_index"].is_contiguous() for each in found)


def test_a_package_that_computes_something_else_is_not_written(tmp_path, monkeypatch):
    def wrong(data: bytes) -> formats.Run:
        run = formats._read_pt2(data)
        return lambda inputs: {name: x + 2e-5 * (len(x) < 29) for name, x in run(inputs).items()}

    kinds = {"aoti": formats.FORMATS["pt2"]._replace(read=wrong, compiled=True)}
    monkeypatch.setattr("deepgat.export.FORMATS", kinds)
    model = Case("mlp", {"num_layers": 1}).model()
    with pytest.raises(UserError, match=r"off by 2e-05 for a graph of \d+ nodes.*nothing was wri"):
        export_model(model.network, model.card, tmp_path / "model.pt2", "aoti")
    assert not any(tmp_path.iterdir())


def test_a_machine_without_a_compiler(tmp_path, monkeypatch):
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "cxx", ("no-such-compiler",))
    with pytest.raises(UserError, match=r"aoti needs a C\+\+ compiler, and this machine has none"):
        Case("gcn").model().export(tmp_path / "model.pt2", "aoti")
    assert not any(tmp_path.iterdir())


def test_what_a_compiler_refuses(monkeypatch):
    def refuse(*_: object, **__: object) -> str:
        raise RuntimeError("CppCompileError: C++ compile error\nOutput:\na.cpp:1: error: no omp.h")

    monkeypatch.setattr("torch._inductor.aoti_compile_and_package", refuse)
    program = torch.export.export(torch.nn.Identity(), (torch.zeros(1),))
    with pytest.raises(UserError, match=r"the C\+\+ compiler refused the program \(no omp.h\)"):
        write_package(program, {})
