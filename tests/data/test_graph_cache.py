"""The cache: what is written comes back, half a file is never seen, damage is noticed."""

import os
from pathlib import Path

import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

from deepgat.data import csbm_graph
from deepgat.data.catalogue import cache
from deepgat.data.feature_matrix import csr_from_scipy


def assert_equal_graphs(one: Data, other: Data) -> None:
    assert sorted(one.keys()) == sorted(other.keys())
    for key in one.keys():  # noqa: SIM118 - Data iterates over pairs
        assert one[key].layout == other[key].layout
        assert one[key].dtype == other[key].dtype
        assert torch.equal(one[key].to_dense(), other[key].to_dense()), key


def sparse_graph() -> Data:
    graph = csbm_graph(40, 2, 6, seed=0)
    graph.x = csr_from_scipy(sp.random(40, 9, 0.1, random_state=0))
    graph.train_mask = torch.rand(40, 10) < 0.5
    graph.val_mask, graph.test_mask = ~graph.train_mask, ~graph.train_mask
    return graph


def many_graphs() -> list[Data]:
    graphs = [csbm_graph(n, 2, 3, degree=1, seed=n) for n in (9, 4, 6)]
    graphs[1].edge_index = torch.zeros(2, 0, dtype=torch.long)
    for graph in graphs:
        graph.y = torch.rand(len(graph.y), 5).round()
        graph.train_mask = torch.ones(len(graph.y), dtype=torch.bool)
    return graphs


@pytest.mark.parametrize(
    "graphs", [[csbm_graph(40, 2, 6)], [sparse_graph()], many_graphs()], ids=len
)
def test_round_trip(graphs: list[Data]) -> None:
    path = cache.graph_file("toy")
    cache.write_graphs(path, graphs)
    result = cache.read_graphs(path)
    assert len(result) == len(graphs)
    for one, other in zip(result, graphs, strict=True):
        assert_equal_graphs(one, other)
    assert os.listdir(path.parent) == ["toy-v2.safetensors"]


@pytest.mark.parametrize("harm", ["cut", "empty", "flipped byte", "text", "other safetensors"])
def test_damage_is_noticed(harm: str) -> None:
    path = cache.graph_file("toy")
    cache.write_graphs(path, [sparse_graph()])
    content = bytearray(path.read_bytes())
    match harm:
        case "cut":
            path.write_bytes(content[:-10])
        case "empty":
            path.write_bytes(b"")
        case "flipped byte":
            content[-5] ^= 1
            path.write_bytes(content)
        case "text":
            path.write_text("not a graph " * 20)
        case "other safetensors":
            path.write_bytes(cache.save({"weight": torch.ones(3)}))
    with pytest.raises(cache.DamagedFile, match="toy-v2"):
        cache.read_graphs(path)


def test_every_flipped_byte_of_the_content_is_noticed() -> None:
    path = cache.graph_file("toy")
    cache.write_graphs(path, [csbm_graph(6, 2, 1, degree=2)])
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    for place in range(header, len(content)):
        harmed = bytearray(content)
        harmed[place] ^= 64
        path.write_bytes(harmed)
        with pytest.raises(cache.DamagedFile):
            cache.read_graphs(path)


def test_cache_files_can_be_shared() -> None:
    path = cache.graph_file("toy")
    before = os.umask(0o022)
    try:
        cache.write_graphs(path, [csbm_graph(6, 2, 1, degree=2)])
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644


def test_cache_folder_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def folder() -> Path:
        return cache.graph_file("cora").parent.parent

    monkeypatch.setenv("DEEPGAT_CACHE", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("HOME", "/home/me")
    assert folder() == Path("/own")
    monkeypatch.delenv("DEEPGAT_CACHE")
    assert folder() == Path("/xdg/deepgat")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert folder() == Path("/home/me/.cache/deepgat")
