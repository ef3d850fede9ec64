"""Every system, exported, computes in torch and in onnxruntime what it computes here."""

from functools import cache

import pytest
from cases import Case, differences, write
from torch.onnx._internal.exporter import _registration as registration

from deepgat.models.registry import SYSTEMS
from networks import ORACLES

EXPORTED = [name for name in SYSTEMS if name not in (*ORACLES, "label-propagation")]
LOGITS = 1e-5
MEMBERS = [
    {"system": "deep", "settings": {"num_layers": 2, "hidden_channels": 4}},
    {"system": "gat", "settings": {"num_layers": 2, "hidden_channels": 4, "heads": 2}},
]
ENSEMBLE = {
    "num_layers": 2,
    "hidden_channels": 4,
    "members": [
        {**member, "weight": weight, "temperature": temperature}
        for member, weight, temperature in zip(MEMBERS, (2, 1), (1.5, 0.7), strict=True)
    ],
}
CASES = [
    *(Case(system) for system in EXPORTED),
    Case("deepgat", preset="authors"),
    Case("deepgat", {"num_layers": 6, "label_hops": 6, "score": "sd"}),
    Case("deepgat", {"residual": "linear", "norm": "batch", "bias": True}),
    Case("gat", {"score": "sd", "residual": "linear", "norm": "pairnorm"}),
    Case("prenorm", {"conv": "gat", "input_norm": "batch"}),
    Case("gcnii", {"conv": "deepgat"}),
    Case("g2", {"conv": "deepgat", "gate_conv": "own"}),
    Case("g2", {"reduction": "sum", "power": 1.5}),
    *(Case("jk", {"mode": mode}) for mode in ("max", "lstm")),
    Case("gcn", {"normalization": "row", "norm": "batch", "unit_features": True}),
    Case("deep", {"num_layers": 5, "step_depth": 2, "attention_from": 1}),
    Case("ensemble", ENSEMBLE),
    Case("ensemble", ENSEMBLE, multi_label=True),
    Case("deepgat", multi_label=True),
    *(Case(name, weights=True, edge_dim=2) for name in ("deepgat", "gcn", "gat")),
    *(Case(name, sparse=True) for name in ("deep", "sage", "mlp")),
    Case("grand", {"project_first": True, "norm": "batch"}, sparse=True),
    Case("deepgat", preset="authors", sparse=True, weights=True),
]
IN_BOTH = [*(Case(system) for system in EXPORTED), Case("ensemble", ENSEMBLE)]
IN_ONNX = [
    Case("deepgat", preset="authors"),
    Case("gat", {"score": "sd", "residual": "linear", "norm": "pairnorm"}),
    Case("g2", {"reduction": "sum", "power": 1.5}),
    Case("jk", {"mode": "lstm"}),
    Case("ensemble", ENSEMBLE, multi_label=True),
    Case("deepgat", weights=True, edge_dim=2),
    Case("deep", sparse=True),
]
"""Variants that are also written as ONNX, which takes three times as long: each has operators that
the systems as they are do not have."""
GROUPS = [CASES[start::3] for start in range(3)]
"""Each has one process that runs its files; few, since that process takes seconds to start."""


def formats_of(case: Case) -> tuple[str, ...]:
    if case in IN_BOTH:
        return ("pt2", "onnx")
    return ("onnx",) if case in IN_ONNX else ("pt2",)


def test_every_system_is_among_the_cases():
    assert {case.system for case in CASES} == {*EXPORTED, "ensemble"}
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(case in CASES for case in (*IN_BOTH, *IN_ONNX))


@pytest.fixture
def one_registry(monkeypatch):
    """torch parses the source of its five hundred ONNX functions for every file; here, once."""
    kind = registration.ONNXRegistry
    monkeypatch.setattr(kind, "from_torchlib", staticmethod(cache(kind.from_torchlib)))


@pytest.mark.slow
@pytest.mark.lengthy
@pytest.mark.usefixtures("one_registry")
@pytest.mark.parametrize("group", GROUPS, ids=range(len(GROUPS)))
def test_logits_of_all_layers_on_graphs_of_other_sizes(group, tmp_path):
    pytest.importorskip("onnxruntime")
    formats = {case.name: formats_of(case) for case in group}
    for case in group:
        write(tmp_path, case, formats[case.name])
    found = differences(tmp_path)
    assert len(found) == sum(map(len, formats.values()))
    assert max(found.values()) < LOGITS, found
