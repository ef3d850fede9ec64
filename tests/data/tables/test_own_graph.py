"""Your own graph: reading every kind of file, and building a dataset from it."""

import csv
from datetime import date, datetime
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import deepgat
from deepgat.data import ReadOptions, load_graph, read_graph
from deepgat.data.tables import delimited, formats
from deepgat.data.tables.structure_features import STRUCTURES, undirected_matrix
from deepgat.errors import UserError
from deepgat.machine import memory_bound

NODES = """id,label,split,age,town
ann,red,train,20,Ashford
bob,blue,train,40,Birch
"c, d",red,val,60,Ashford
dan,blue,val,80,
=eve,red,test,30,Birch
fay,,,50,Ashford
"""
EDGES = """source,target,weight,trust
ann,bob,2,0.5
bob,"c, d",1,0.25
"c, d",ann,1,0
dan,=eve,3,1
=eve,dan,3,1
"""


def folder(path: Path, nodes: str = NODES, edges: str = EDGES) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "nodes.csv").write_text(nodes)
    (path / "edges.csv").write_text(edges)
    return path


@pytest.fixture
def club(tmp_path) -> Path:
    return folder(tmp_path / "club")


def test_a_folder_becomes_a_dataset(club):
    data = load_graph(f"{club}/")
    assert data.title == "club"
    assert data.node_ids == ("ann", "bob", "c, d", "dan", "=eve", "fay")
    assert data.class_names == ("blue", "red")
    assert data.split == "public"
    assert data.feature_names == ("age", "town=Ashford", "town=Birch")
    graph = data.graph
    assert graph.y.tolist() == [1, 0, 1, 0, 1, -1]
    ages = torch.tensor([20.0, 40, 60, 80, 30, 50])
    torch.testing.assert_close(graph.x[:, 0], (ages - ages.mean()) / ages.std(correction=0))
    assert graph.x[:, 1:].tolist() == [[1, 0], [0, 1], [1, 0], [0, 0], [0, 1], [1, 0]]
    found = {
        (u, v): (w, *t)
        for (u, v), w, t in zip(
            graph.edge_index.t().tolist(),
            graph.edge_weight.tolist(),
            graph.edge_attr.tolist(),
            strict=True,
        )
    }
    one_way = {(0, 1): (2, 0.5), (1, 2): (1, 0.25), (2, 0): (1, 0), (3, 4): (3, 1)}
    assert found == one_way | {(v, u): values for (u, v), values in one_way.items()}
    assert [graph[f"{part}_mask"].tolist() for part in ("train", "val", "test")] == [
        [True, True, False, False, False, False],
        [False, False, True, True, False, False],
        [False, False, False, False, True, False],
    ]
    assert any("made undirected: 3 edges" in note for note in data.notes)
    assert any("1 of 6 nodes have no label" in note for note in data.notes)


def test_edges_stay_directed_on_request(club):
    graph = load_graph(club, undirected=False).graph
    expected = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 3)]
    assert sorted(map(tuple, graph.edge_index.t().tolist())) == expected


def test_repeated_edges_are_merged_and_weightless_ones_left_out(tmp_path):
    edges = "source,target,weight,trust\nann,bob,2,1\nann,bob,3,3\nann,ann,1,0\nbob,dan,0,0\n"
    data = load_graph(folder(tmp_path / "g", edges=edges), undirected=False)
    assert data.graph.edge_index.tolist() == [[0, 0], [0, 1]]
    assert data.graph.edge_weight.tolist() == [1.0, 5.0]
    assert data.graph.edge_attr.tolist() == [[0.0], [2.0]]
    said = " ".join(data.notes)
    assert "1 repeated edge merged" in said
    assert "1 self-loop" in said
    assert "1 edge of weight 0" in said


def test_several_labels(tmp_path):
    nodes = "id,label,x\na,u;v,1\nb,v,2\nc,,3\nd,w; u,4\n" + "".join(
        f"n{i},v,{i}\n" for i in range(6)
    )
    data = load_graph(folder(tmp_path / "g", nodes, "source,target\na,b\n"))
    assert data.multi_label
    assert data.class_names == ("u", "v", "w")
    assert data.graph.y[:4].tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 0], [1, 0, 1]]
    together = data.graph.train_mask | data.graph.val_mask | data.graph.test_mask
    assert not together[2]  # unlabelled
    assert int(together.sum()) == 9


def many(classes: str, count: int) -> str:
    return "id,label,x\n" + "".join(f"{c}{i},{c},{i}\n" for c in classes for i in range(count))


def test_a_split_is_drawn_with_a_seed_and_by_class(tmp_path):
    path = folder(tmp_path / "g", many("ab", 10), "source,target\na1,b1\n")
    data = load_graph(path)
    assert data.split == "fractions:0.6/0.2:0"
    assert any("without a split" in note for note in data.notes)
    for c in range(2):
        own = data.graph.y == c
        sizes = [int((data.graph[f"{p}_mask"] & own).sum()) for p in ("train", "val", "test")]
        assert sizes == [6, 2, 2]
    again = load_graph(path, "random:3:4/2").graph
    assert int(again.train_mask.sum()) == 8
    assert not torch.equal(again.train_mask, load_graph(path, "random:4:4/2").graph.train_mask)
    with pytest.raises(UserError, match="comes without a split"):
        load_graph(path, "public")


def test_a_class_too_small_is_refused_or_unlabelled(tmp_path):
    nodes = many("ab", 10) + "z,c,1\n"
    path = folder(tmp_path / "g", nodes, "source,target\na1,z\n")
    with pytest.raises(UserError, match=r"class 'c' has 1 node, but the split .* needs 3"):
        load_graph(path)
    with pytest.raises(UserError, match="needs 12 of every class"):
        load_graph(path, "random:0:10/1", rare="refuse")
    data = load_graph(path, rare="unlabel")
    assert int(data.graph.y[-1]) == -1
    assert data.reading == {"rare": "unlabel"}


def test_gaps_are_refused_or_filled(tmp_path):
    nodes = "id,label,x\na,u,1\nb,v,\nc,u,3\n" + "".join(
        f"n{i},{'uv'[i % 2]},2\n" for i in range(8)
    )
    path = folder(tmp_path / "g", nodes, "source,target\na,b\n")
    with pytest.raises(UserError, match=r"nodes.csv, line 3, column 'x': the number is missing"):
        load_graph(path)
    filled = load_graph(path, missing="mean", scale="none").graph.x
    assert filled[:3, 0].tolist() == [1, 2, 3]
    assert load_graph(path, missing="zero").graph.x[1].tolist() == [0]


def test_scales(tmp_path):
    path = folder(tmp_path / "g", many("ab", 10), "source,target\na1,b1\n")
    unit = load_graph(path, scale="unit").graph.x
    assert unit.min() == 0
    assert unit.max() == 1
    assert load_graph(path, scale="none").graph.x[9] == 9


def test_a_wide_table_of_zeros_and_ones_stays_sparse(tmp_path):
    header = ",".join(f"w{i}" for i in range(40))
    rows = [",".join("1" if j == i % 40 else "0" for j in range(40)) for i in range(30)]
    text = f"id,label,{header}\n" + "".join(f"{i},{i % 2},{row}\n" for i, row in enumerate(rows))
    x = load_graph(folder(tmp_path / "g", text, "source,target\n1,2\n")).graph.x
    assert x.layout is torch.sparse_csr
    assert torch.equal(x.to_dense()[:, :30], torch.eye(30))


def test_a_column_to_drop_must_be_there(club):
    assert load_graph(club, drop="town,trust").num_edge_features == 0
    with pytest.raises(UserError, match="unknown column to drop 'twon': did you mean 'town'"):
        load_graph(club, drop="twon")


def test_words(tmp_path):
    rows = "".join(f"n{i},{'ab'[i % 2]},{'good book' if i % 2 else 'bad film film'} nr{i}\n"
                   for i in range(20))  # fmt: skip
    path = folder(tmp_path / "g", "id,label,about\n" + rows, "source,target\nn1,n2\n")
    with pytest.raises(UserError, match=r"20 different texts are too many .* text=about"):
        load_graph(path)
    data = load_graph(path, text="about")
    at = data.feature_names.index("about:film")
    assert data.graph.x.to_dense()[:2, at].tolist() == [2.0, 0.0]


def test_columns_under_other_names(tmp_path):
    nodes = "Name,topic,part,x,junk\na,u,train,1,q\nb,v,val,2,r\n"
    path = folder(tmp_path / "g", nodes, "from,to,strength\na,b,2\n")
    data = load_graph(
        path, id="name", label="topic", part="part", source="from", target="to", weight="strength",
        drop=["junk"],
    )  # fmt: skip
    assert data.feature_names == ("x",)
    assert data.graph.edge_weight.tolist() == [2, 2]
    assert data.graph.train_mask.tolist() == [True, False]


def test_structure(tmp_path):
    path = folder(tmp_path / "g", "id,label\n" + "".join(f"{i},{i % 2}\n" for i in range(10)),
                  "source,target\n" + "".join(f"{i},{i + 1}\n" for i in range(8)))  # fmt: skip
    with pytest.raises(UserError, match=r"g has no features: .*structure=degree"):
        load_graph(path)
    data = load_graph(path, structure="degree,pagerank,spectral")
    assert data.num_features == 2 + 1 + 9
    assert data.graph.x.isfinite().all()


def test_pagerank_and_eigenvectors_are_what_networkx_and_numpy_say():
    graph = nx.barbell_graph(40, 3)
    edges = np.array(graph.edges).T
    matrix = undirected_matrix(edges, len(graph))
    mine = np.exp(STRUCTURES["pagerank"](matrix)["pagerank"]) / len(graph)
    theirs = nx.pagerank(graph, alpha=0.85, tol=1e-12)
    np.testing.assert_allclose(mine, [theirs[i] for i in range(len(graph))], rtol=2e-3)
    a = matrix.toarray() + np.eye(len(graph))
    d = np.sqrt(a.sum(1))
    values = np.linalg.eigvalsh(a / d / d[:, None])[::-1]
    first = STRUCTURES["spectral"](matrix)["spectral 1"] / np.sqrt(len(graph))
    rayleigh = first @ (a / d / d[:, None]) @ first
    assert rayleigh == pytest.approx(values[1], abs=1e-5)


def test_an_edge_list_with_a_file_of_nodes(tmp_path):
    (tmp_path / "g.txt").write_text("# comment\n0 1\n1\t2 \n\n2 0\n")
    with pytest.raises(UserError, match="no labels"):
        load_graph(tmp_path / "g.txt")
    assert read_graph(tmp_path / "g.txt", ReadOptions()).edges.index.shape == (2, 6)
    rows = "".join(f"{i},{'ab'[i % 2]},{i}\n" for i in range(10))
    (tmp_path / "n.csv").write_text("id,label,x\n" + rows)
    data = load_graph(tmp_path / "g.txt", nodes=str(tmp_path / "n.csv"))
    assert data.graph.num_nodes == 10
    assert data.graph.edge_index.shape == (2, 6)
    np.save(tmp_path / "x.npy", np.arange(6.0).reshape(3, 2))
    graph = read_graph(tmp_path / "g.txt", ReadOptions(nodes=str(tmp_path / "x.npy"), scale="none"))
    assert graph.x.tolist() == [[0, 1], [2, 3], [4, 5]]
    (tmp_path / "h.csv").write_text("1,1\n1,2\n")
    assert read_graph(tmp_path / "h.csv", ReadOptions()).edges.self_loops == 1


def npz(path: Path, **changes) -> Path:
    adjacency = np.array([[0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1], [0, 0, 0, 0]])
    attributes = np.eye(4)
    import scipy.sparse as sp

    arrays = {}
    for name, matrix in (("adj", adjacency), ("attr", attributes)):
        rows = sp.csr_matrix(matrix)
        parts = (rows.data, rows.indices, rows.indptr, np.array(rows.shape))
        keys = ("data", "indices", "indptr", "shape")
        arrays |= {f"{name}_{key}": part for key, part in zip(keys, parts, strict=True)}
    arrays |= {"labels": np.array([0, 1, 0, -1])} | changes
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return path


def test_npz(tmp_path):
    names = np.array(["w", "x", "y", "z"])
    masks = {"train_mask": np.array([1, 1, 0, 0], bool), "val_mask": np.array([0, 0, 1, 0], bool)}
    path = npz(tmp_path / "g.npz", node_names=names, class_names=np.array(["p", "q"]), **masks)
    data = load_graph(path)
    assert data.node_ids == ("w", "x", "y", "z")
    assert data.class_names == ("p", "q")
    assert data.graph.y.tolist() == [0, 1, 0, -1]
    assert data.graph.edge_index.shape == (2, 8)
    assert data.split == "public"
    assert torch.equal(data.graph.x.to_dense(), torch.eye(4))


@pytest.mark.parametrize("kind", ["graphml", "gml"])
def test_networkx_files_and_graphs(tmp_path, kind):
    graph = nx.Graph()
    for i in range(10):
        graph.add_node(f"n{i}", topic="ab"[i % 2], size=float(i))
    graph.add_edge("n0", "n1", weight=2.0)
    graph.add_edge("n1", "n2", weight=1.0)
    getattr(nx, f"write_{kind}")(graph, tmp_path / f"g.{kind}")
    read = load_graph(tmp_path / f"g.{kind}", label="topic")
    taken = deepgat.from_networkx(graph, label="topic")
    for data in (read, taken):
        assert data.node_ids == tuple(f"n{i}" for i in range(10))
        assert data.class_names == ("a", "b")
        assert data.graph.edge_index.tolist() == [[1, 0, 2, 1], [0, 1, 1, 2]]
        assert data.graph.edge_weight.tolist() == [2, 2, 1, 1]
    assert torch.equal(read.graph.x, taken.graph.x)


def test_networkx_vectors_and_directions():
    graph = nx.DiGraph()
    for i in range(10):
        graph.add_node(i, label=i % 2, x=[i, 2.0 * i])
    graph.add_edge(0, 1)
    data = deepgat.from_networkx(graph, scale="none")
    assert data.feature_names == ("x0", "x1")
    assert data.graph.x[3].tolist() == [3, 6]
    assert data.graph.edge_index.shape == (2, 2)
    assert deepgat.from_networkx(graph, undirected=False).graph.edge_index.tolist() == [[0], [1]]
    both = deepgat.from_networkx(graph.to_undirected(), undirected=False)
    assert both.graph.edge_index.shape == (2, 2)
    with pytest.raises(UserError, match="expected a graph"):
        deepgat.from_networkx(3)


def test_pandas_reads_as_the_files_do(club):
    pd = pytest.importorskip("pandas")
    nodes, edges = pd.read_csv(club / "nodes.csv"), pd.read_csv(club / "edges.csv")
    frames, files = deepgat.from_pandas(nodes, edges), load_graph(club)
    assert frames.node_ids == files.node_ids
    assert frames.class_names == files.class_names
    for key in ("x", "y", "edge_index", "edge_weight", "edge_attr", "train_mask", "test_mask"):
        torch.testing.assert_close(frames.graph[key], files.graph[key])
    with pytest.raises(UserError, match=r"edges, row 1, column 'source': the id 'zoe'"):
        deepgat.from_pandas(nodes, edges.replace("ann", "zoe"))
    with pytest.raises(UserError, match="has no column 'id'"):
        deepgat.from_pandas(nodes.drop(columns="id"), edges)


def test_pyg_keeps_its_masks_and_values():
    masks = torch.eye(3, dtype=torch.bool)
    data = Data(
        x=torch.randn(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]), y=torch.tensor([1, 0, 1]),
        edge_attr=torch.tensor([1.0, 2.0]), train_mask=masks[0], val_mask=masks[1],
        test_mask=masks[2],
    )  # fmt: skip
    made = deepgat.from_pyg(data)
    assert made.split == "public"
    assert made.num_edge_features == 1
    assert torch.equal(made.graph.x, data.x)
    assert torch.equal(made.graph.y, data.y)
    gap = deepgat.from_pyg(Data(**{**data.to_dict(), "y": torch.tensor([3, 0, 3])}))
    assert (gap.num_classes, gap.graph.y.tolist()) == (4, [3, 0, 3])
    several = torch.tensor([[1, 0, 0], [0, 0, 0], [1, 0, 0]])
    mask = {"val_mask": masks[2], "test_mask": masks[2] & False}
    labels = deepgat.from_pyg(Data(**{**data.to_dict(), "y": several, **mask}))
    assert labels.multi_label
    assert labels.graph.y.tolist() == several.tolist()
    with pytest.raises(UserError, match="y has 2 rows for 3 nodes"):
        deepgat.from_pyg(Data(x=data.x, edge_index=data.edge_index, y=torch.tensor([0, 1])))
    with pytest.raises(UserError, match="expected a torch_geometric Data"):
        deepgat.from_pyg("cora")


def test_parquet_reads_as_csv_does(club, tmp_path):
    pytest.importorskip("pyarrow")
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    (tmp_path / "p").mkdir()
    for name in ("nodes", "edges"):
        convert = arrow_csv.ConvertOptions(strings_can_be_null=True)
        table = arrow_csv.read_csv(club / f"{name}.csv", convert_options=convert)
        parquet.write_table(table, tmp_path / "p" / f"{name}.parquet")
    read, files = load_graph(tmp_path / "p"), load_graph(club)
    assert read.node_ids == files.node_ids
    for key in ("x", "y", "edge_index", "edge_weight", "edge_attr", "train_mask"):
        torch.testing.assert_close(read.graph[key], files.graph[key])


def test_parquet_of_few_values_is_bounded_by_the_memory_alone(tmp_path, monkeypatch):
    """A column of one value takes no room in the file, however many rows it has."""
    import pyarrow as pa
    from pyarrow import parquet

    monkeypatch.setattr(formats, "MOST_UNPACKED", 2**10)
    path = tmp_path / "zeros.parquet"
    parquet.write_table(pa.table({"x": np.zeros(2**20, np.int8)}), path)
    assert 100 * path.stat().st_size < 2**20
    assert formats.ParquetTable(path).header == ["x"]
    with memory_bound(1), pytest.raises(UserError, match=r"unpacks to 8,388,608 or more.*as CSV"):
        formats.ParquetTable(path)


@pytest.mark.parametrize("kind", ["timestamp", "utc", "date", "time", "duration"])
def test_dates_in_parquet_are_refused_unless_left_out(club, tmp_path, kind):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    type_, number = {
        "timestamp": (pa.timestamp("us"), pa.int64()),
        "utc": (pa.timestamp("ns", "UTC"), pa.int64()),
        "date": (pa.date32(), pa.int32()),
        "time": (pa.time64("us"), pa.int64()),
        "duration": (pa.duration("s"), pa.int64()),
    }[kind]
    (tmp_path / "p").mkdir()
    tables = {name: arrow_csv.read_csv(club / f"{name}.csv") for name in ("nodes", "edges")}
    days = pa.array(range(tables["nodes"].num_rows), number).cast(type_)
    tables["nodes"] = tables["nodes"].append_column("joined", days)
    for name, table in tables.items():
        parquet.write_table(table, tmp_path / "p" / f"{name}.parquet")
    sentence = r"nodes.*column 'joined': it holds dates or times .* leave it out with drop=joined"
    with pytest.raises(UserError, match=sentence):
        load_graph(tmp_path / "p")
    assert "joined" not in load_graph(tmp_path / "p", drop="joined").feature_names


@pytest.mark.parametrize(
    "value", [date(2024, 5, 1), datetime(2024, 5, 1, 8), np.datetime64("2024-05-01")], ids=repr
)
def test_dates_in_python_are_refused_unless_left_out(value):
    graph = nx.path_graph(8)
    nx.set_node_attributes(graph, {node: "ab"[node % 2] for node in graph}, "label")
    nx.set_node_attributes(graph, dict(enumerate(range(8))), "age")
    nx.set_node_attributes(graph, dict.fromkeys(range(8), value), "joined")
    with pytest.raises(UserError, match="'joined': it holds dates or times"):
        deepgat.from_networkx(graph)
    assert "joined" not in deepgat.from_networkx(graph, drop="joined").feature_names
    nx.set_node_attributes(graph, {0: 1j}, "wave")
    with pytest.raises(UserError, match="'wave': it holds complex numbers"):
        deepgat.from_networkx(graph, drop="joined")


@pytest.mark.parametrize("name", ["x", "edge_weight", "y"])
def test_complex_numbers_are_refused(name):
    graph = Data(
        x=torch.eye(3), edge_index=torch.tensor([[0, 1], [1, 2]]), y=torch.tensor([0, 1, 0])
    )
    graph[name] = torch.ones(2 if name == "edge_weight" else 3, dtype=torch.complex64)
    with pytest.raises(UserError, match=f"{name} holds complex numbers"):
        deepgat.from_pyg(graph)


def test_names_and_paths_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(folder(tmp_path / "digits").parent)
    assert load_graph("digits").title == "Digits"  # the catalogue comes first
    assert load_graph("./digits").title == "digits"
    assert load_graph(Path("digits")).title == "digits"
    with pytest.raises(UserError, match="nowhere is not there"):
        load_graph("nowhere/")
    with pytest.raises(UserError, match="unknown dataset 'nowhere'"):
        load_graph("nowhere")
    with pytest.raises(UserError, match="option for your own graph"):
        load_graph("csbm", missing="mean")
    with pytest.raises(UserError, match="did you mean 'missing'"):
        load_graph("./digits", mising="mean")


def test_reading_in_small_blocks_and_without_arrow(club, monkeypatch):
    expected = load_graph(club).graph
    monkeypatch.setattr(delimited, "BLOCK", 64)
    for _ in range(2):
        found = load_graph(club).graph
        for key in ("x", "y", "edge_index", "edge_weight", "edge_attr"):
            assert torch.equal(found[key], expected[key])
        monkeypatch.setattr(delimited.TextTable, "_arrow", lambda *_: None)


def test_weights_and_features_reach_the_model_and_names_the_predictions(club, tmp_path):
    data = load_graph(club)
    training = {"epochs": 3, "device": "cpu"}
    plan = deepgat.recipe("deepgat", preset="paper", num_layers=2, training=training)
    run = deepgat.train_once(data, plan)
    assert run.card.edge_features == 1
    assert all(conv.edge_map.weight.grad is not None for conv in run.model.convs)
    deepgat.save_run(tmp_path / "model", run, data)
    model, card = deepgat.load_run(tmp_path / "model")
    again = card.load_data()
    torch.testing.assert_close(
        deepgat.evaluate(model, again, "cpu").logits[0], run.evaluation.logits[0]
    )
    with (tmp_path / "model" / "predictions.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["graph", "node", "part", "label", "prediction", "p:blue", "p:red"]
    assert [row[1] for row in rows[1:]] == ["ann", "bob", "c, d", "dan", "'=eve", "fay"]
    assert {row[4] for row in rows[1:]} <= {"blue", "red"}
    assert rows[6][3] == ""
    nodes = (club / "nodes.csv").read_text().replace("red", "green")
    (club / "nodes.csv").write_text(nodes)
    with pytest.raises(UserError, match=r"classes blue, green, but .* trained for blue, red"):
        card.load_data()
