"""Inputs that cannot be read: each is one sentence and exit code 2, and nothing is written.

Every case builds something wrong in an empty folder and returns the path to train on, perhaps with
options. The sentence must hold the words beside it.
"""

import io
import os
import re
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_own_graph import EDGES, NODES, folder, npz

from deepgat.cli import main
from deepgat.data import ReadOptions, load_graph, read_graph
from deepgat.errors import UserError

Made = Path | tuple[Path, list[str]]
CASES: list[tuple[str, str, Callable[[Path], Made]]] = []


def case(words: str) -> Callable[[Callable[[Path], Made]], Callable[[Path], Made]]:
    def keep(make: Callable[[Path], Made]) -> Callable[[Path], Made]:
        CASES.append((make.__name__, words, make))
        return make

    return keep


def table(name: str, words: str, *, nodes: str | bytes = NODES, edges: str | bytes = EDGES,
          read: tuple[str, ...] = ()) -> None:  # fmt: skip
    """A case of a folder whose tables hold this."""

    def make(path: Path) -> Made:
        folder(path / "g")
        for file, content in (("nodes.csv", nodes), ("edges.csv", edges)):
            raw = content.encode() if isinstance(content, str) else content
            (path / "g" / file).write_bytes(raw)
        return path / "g", [part for option in read for part in ("--read", option)]

    CASES.append((name, words, make))


# what is wrong with a whole table
table("empty nodes", "nodes.csv is empty", nodes="")
table("empty edges", "edges.csv is empty", edges="")
table("blank first line", "nodes.csv is empty", nodes="\n\n\n")
table("only a byte order mark", "nodes.csv is empty", nodes=b"\xef\xbb\xbf")
table("header alone", "has no nodes", nodes="id,label,x\n", edges="source,target\n")
table("utf-16", "nodes.csv is UTF-16", nodes=NODES.encode("utf-16"))
table("utf-16 without a mark", "NUL bytes", nodes=NODES.encode("utf-16-le"))
table("binary", "NUL bytes", nodes=bytes(range(256)) * 10)
table("a zip called csv", "is a zip archive", nodes=b"PK\x03\x04" + b"x" * 50)
table("gzip called csv", "is gzip", edges=b"\x1f\x8b\x08" + b"x" * 50)
table("parquet called csv", "is a Parquet file", nodes=b"PAR1" + b"x" * 50)
table("old line ends", "carriage return", nodes=NODES.replace("\n", "\r"))
table("latin-1 header", "line 1 is not UTF-8", nodes="id,größe,label\n".encode("latin-1"))
table("no id column", "no column 'id'", nodes=NODES.replace("id,", "name,", 1))
table("no source column", "no column 'source'", edges=EDGES.replace("source", "src"))
table("no target column", "no column 'target'", edges=EDGES.replace("target", "dst"))
table("a column twice", "'Age' appears twice", nodes=NODES.replace("town", "Age"))
table("a column without name", "column 5 has no name", nodes=NODES.replace("town", " "))
table("open quote in the header", "quote that is not closed", nodes='id,"label\n')
table(
    "no label column",
    r"label=… \(there are x\)",
    nodes="id,x\na,1\nb,2\n",
    edges="source,target\na,b\n",
)
table("labels all empty", "has no labels", nodes="id,label,x\na,,1\nb,,2\n",
      edges="source,target\na,b\n")  # fmt: skip
table("no features", "has no features", nodes="id,label\na,u\nb,v\n", edges="source,target\na,b\n")

table("colours in a header", "no column 'id' among", nodes="\x1b[31mid,label\u2028\na,u\n")

# what is wrong with one line
table("a cell too many", "line 3: there are 6 cells, but 5 columns",
      nodes=NODES.replace("bob,", "bob,extra,"))  # fmt: skip
table("a cell too few", "line 2: there are 4 cells", nodes=NODES.replace("ann,red,", "ann,"))
table("truncated in a row", "line 7: there are 3 cells", nodes=NODES[: NODES.index(",,50") + 1])
table("truncated in quotes", "never closed", edges=EDGES[: EDGES.index("c, d") + 2])
table("text after a quote", "text follows the closing quote", nodes=NODES.replace('d"', 'd" e'))
table("an id twice", "line 7, column 'id': the id 'ann' is there a second time",
      nodes=NODES.replace("fay", "ann"))  # fmt: skip
table("an id missing", "line 7, column 'id': the id is missing", nodes=NODES.replace("fay", ""))
table("an unknown source", "line 2, column 'source': the id 'zoe' is not among the nodes",
      edges=EDGES.replace("ann", "zoe", 1))  # fmt: skip
table("an unknown target", "line 3, column 'target': the id 'c' is not",
      edges=EDGES.replace('bob,"c, d"', "bob,c"))  # fmt: skip
table("a formula as unknown id", "the id .=cmd", edges=EDGES.replace("bob,", "=cmd|'/C calc'!A0,"))
table(
    "an end missing", "column 'target': the id is missing", edges=EDGES.replace("ann,bob", "ann,")
)
table("latin-1 id", "line 2, column 'id'", nodes=NODES.replace("ann", "ä").encode("latin-1"))
table("latin-1 label", "column 'label': .* is not UTF-8",
      nodes=NODES.replace("blue", "grün").encode("latin-1"))  # fmt: skip
table("overlong utf-8", "is not UTF-8", nodes=NODES.encode().replace(b"ann", b"\xc0\xaf"))
table("surrogate in utf-8", "is not UTF-8", nodes=NODES.encode().replace(b"ann", b"\xed\xa0\x80"))
table("a NUL in an id", "NUL byte",
      nodes=NODES.encode().replace(b"fay", b"f\0y"),
      edges=EDGES)  # fmt: skip
table("a huge number", "column 'age': inf is too large", nodes=NODES.replace(",20,", ",1e999,"))
table("beyond single precision", r"column 'age': 1e\+39 is too large",
      nodes=NODES.replace(",20,", ",1e39,"))  # fmt: skip
table("infinity", "column 'age': -inf is too large", nodes=NODES.replace(",20,", ",-inf,"))
table("a missing number", "line 2, column 'age': the number is missing",
      nodes=NODES.replace(",20,", ",,"))  # fmt: skip
table("NaN", "line 3, column 'age': the number is missing", nodes=NODES.replace(",40,", ",NaN,"))
table("a column without any number", "every number is missing",
      nodes="id,label,x\na,u,\nb,v,\n", edges="source,target\na,b\n")  # fmt: skip
table("too many categories", "too many for categories", nodes="id,label,x\n" + "".join(
      f"{i},{i % 2},word{i}\n" for i in range(20)), edges="source,target\n1,2\n")  # fmt: skip
table("a weight that is text", "column 'weight': 'two' is not a number",
      edges=EDGES.replace(",2,", ",two,"))  # fmt: skip
table("a negative weight", "line 2, column 'weight': the weight -2 is negative",
      edges=EDGES.replace(",2,", ",-2,"))  # fmt: skip
table("a missing weight", "line 2, column 'weight': the number is missing",
      edges=EDGES.replace(",2,", ",,"))  # fmt: skip
table("an edge feature that is text", "line 2, column 'trust': 'much' is not a number.*drop=trust",
      edges=EDGES.replace("0.5", "much"))  # fmt: skip
table("a missing edge feature", "column 'trust': the number is missing",
      edges=EDGES.replace("0.5", ""))  # fmt: skip
table("a split nobody knows", "'hold-out' is not part of a split",
      nodes=NODES.replace("test", "hold-out"))  # fmt: skip
table("a split for the unlabelled", "a node without a label is given to test",
      nodes=NODES.replace("fay,,", "fay,,test"))  # fmt: skip
table("no training nodes", "has no training nodes", nodes=NODES.replace("train", "test"))
table("no validation nodes", "has no validation nodes", nodes=NODES.replace("val", "test"))
table("a label between semicolons", "empty label between semicolons",
      nodes=NODES.replace("ann,red", "ann,red;;blue"))  # fmt: skip
table("a class of one", "class 'c' has 1 node", nodes="id,label,x\n" + "".join(
      f"{i},{'ab'[i % 2]},1\n" for i in range(20)) + "z,c,2\n",
      edges="source,target\n1,2\n")  # fmt: skip
table("a row without end", "NUL bytes|longer than|no column", nodes=b"id," + b"x" * 50 + b"\0")

# what is wrong with the options
table("an unknown option", "did you mean 'missing'", read=("mising=mean",))
table("an option without value", "expected NAME=VALUE", read=("missing",))
table("a choice nobody knows", "choice for missing", read=("missing=guess",))
table("a structure nobody knows", "structural feature 'wheel'", read=("structure=wheel",))
table("text of no column", "no column 'abstract' to read as text", read=("text=abstract",))
table("no words", "no words of two letters", nodes="id,label,x,t\na,u,1,?\nb,v,2,!\n",
      edges="source,target\na,b\n", read=("text=t",))  # fmt: skip
table("one column twice", "name the same column", read=("target=source",))


# what is wrong with the path
@case("is not there")
def nothing(path: Path) -> Made:
    return path / "g" / ".." / "nothing"


@case("has no nodes.csv")
def an_empty_folder(path: Path) -> Made:
    (path / "g").mkdir()
    return path / "g"


@case("has no edges.csv")
def no_edges(path: Path) -> Made:
    (folder(path / "g") / "edges.csv").unlink()
    return path / "g"


@case("both nodes.csv and nodes.parquet")
def two_tables(path: Path) -> Made:
    (folder(path / "g") / "nodes.parquet").write_bytes(b"PAR1")
    return path / "g"


@case("nodes.csv is not a file")
def a_folder_called_nodes(path: Path) -> Made:
    (folder(path / "g") / "nodes.csv").unlink()
    (path / "g" / "nodes.csv").mkdir()
    return path / "g"


@case("cannot be opened")
def a_loop_of_links(path: Path) -> Made:
    (folder(path / "g") / "nodes.csv").unlink()
    (path / "g" / "nodes.csv").symlink_to(path / "g" / "nodes.csv")
    return path / "g"


@case("cannot be opened")
def a_folder_in_a_loop(path: Path) -> Made:
    (path / "a").symlink_to(path / "b")
    (path / "b").symlink_to(path / "a")
    return path / "a"


@case("nodes.csv is not a file")
def a_dangling_link(path: Path) -> Made:
    (folder(path / "g") / "nodes.csv").unlink()
    (path / "g" / "nodes.csv").symlink_to(path / "elsewhere")
    return path / "g"


@case("neither a regular file nor a folder")
def a_pipe(path: Path) -> Made:
    (folder(path / "g") / "nodes.csv").unlink()
    os.mkfifo(path / "g" / "nodes.csv")
    return path / "g"


@case("neither a regular file nor a folder")
def a_device(path: Path) -> Made:
    return Path("/dev/zero")


@case("cannot be opened")
def a_name_too_long(path: Path) -> Made:
    return path / ("x" * 300)


@case(r"evil\\n\\x1b\[31m is not there")
def a_name_with_control_characters(path: Path) -> Made:
    return path / "evil\n\x1b[31m"


@case("has an unknown format")
def an_unknown_suffix(path: Path) -> Made:
    (path / "graph.xlsx").write_bytes(b"PK")
    return path / "graph.xlsx"


# edge lists
def edge_list(path: Path, text: str | bytes, *options: str) -> Made:
    (path / "g.txt").write_bytes(text.encode() if isinstance(text, str) else text)
    return path / "g.txt", [part for option in options for part in ("--read", option)]


@case("has no edges")
def an_empty_edge_list(path: Path) -> Made:
    return edge_list(path, "# nothing\n")


@case("has 4 columns")
def a_wide_edge_list(path: Path) -> Made:
    return edge_list(path, "a b 1 2\n")


@case("line 2: there are 3 cells, but 2 columns")
def an_uneven_edge_list(path: Path) -> Made:
    return edge_list(path, "a b\nb c d\n")


@case("has no labels")
def an_edge_list_alone(path: Path) -> Made:
    return edge_list(path, "a b\n")


@case("x.npy is not there")
def an_edge_list_whose_nodes_are_missing(path: Path) -> Made:
    return edge_list(path, "0 1\n", f"nodes={path / 'x.npy'}")


@case("Python objects")
def features_that_are_objects(path: Path) -> Made:
    np.save(path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return edge_list(path, "0 1\n", f"nodes={path / 'x.npy'}")


@case("x.npy cannot be read")
def features_that_claim_too_much(path: Path) -> Made:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000, 1000000), }"
    header = header.ljust(117) + b"\n"
    (path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    return edge_list(path, "0 1\n", f"nodes={path / 'x.npy'}")


# npz
@case("no zip archive")
def npz_that_is_text(path: Path) -> Made:
    (path / "g.npz").write_text("hello")
    return path / "g.npz"


@case("no zip archive|damaged")
def npz_cut_short(path: Path) -> Made:
    whole = npz(path / "g.npz").read_bytes()
    (path / "g.npz").write_bytes(whole[: len(whole) // 2])
    return path / "g.npz"


@case("array 'labels' cannot be read .*Object arrays")
def npz_with_pickled_objects(path: Path) -> Made:
    return npz(path / "g.npz", labels=np.array([print, 1, 2, 3], dtype=object))


@case("and unpacks to")
def npz_bomb(path: Path) -> Made:
    with zipfile.ZipFile(path / "g.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("adj_data.npy", b"x" * 1000)
    raw = bytearray((path / "g.npz").read_bytes())
    at = raw.index(b"PK\x01\x02")
    raw[at + 24 : at + 28] = struct.pack("<I", 2**32 - 10)
    (path / "g.npz").write_bytes(raw)
    return path / "g.npz"


@case("has no adj_data but attr_data")
def npz_without_edges(path: Path) -> Made:
    changes = {f"adj_{key}": None for key in ("data", "indices", "indptr", "shape")}
    return npz(path / "g.npz", **changes)


@case("no adj_indptr")
def npz_with_a_part_missing(path: Path) -> Made:
    return npz(path / "g.npz", adj_indptr=None)


@case("arrays of adj do not fit together")
def npz_with_an_index_too_large(path: Path) -> Made:
    return npz(path / "g.npz", adj_indices=np.array([1, 2, 0, 99]))


@case("arrays of adj do not fit together")
def npz_with_a_negative_index(path: Path) -> Made:
    return npz(path / "g.npz", adj_indices=np.array([1, 2, 0, -1]))


@case("arrays of attr do not fit together")
def npz_with_pointers_that_fall(path: Path) -> Made:
    return npz(path / "g.npz", attr_indptr=np.array([0, 3, 1, 2, 4]))


@case("adj_indptr must rise to the number of adj_indices, 4")
def npz_with_unsigned_pointers_that_fall(path: Path) -> Made:
    return npz(path / "g.npz", adj_indptr=np.array([0, 3, 1, 4, 4], np.uint32))


@case("adj_indptr must rise to the number of adj_indices, 4")
def npz_with_edges_after_the_last_pointer(path: Path) -> Made:
    return npz(path / "g.npz", adj_indptr=np.array([0, 1, 2, 3, 3]))


@case("must have one dimension")
def npz_with_a_table_of_pointers(path: Path) -> Made:
    return npz(path / "g.npz", adj_indptr=np.array([[0, 1, 2, 4, 4]]))


@case("adj_data must be numbers")
def npz_with_complex_weights(path: Path) -> Made:
    return npz(path / "g.npz", adj_data=np.array([1, 1, 1, 1j]))


@case("attr_matrix holds complex numbers")
def npz_with_complex_features(path: Path) -> Made:
    parts = dict.fromkeys(f"attr_{part}" for part in ("data", "indices", "indptr", "shape"))
    return npz(path / "g.npz", **parts, attr_matrix=np.eye(4) * 1j)


@case("labels holds complex numbers")
def npz_with_complex_labels(path: Path) -> Made:
    return npz(path / "g.npz", labels=np.array([0, 1, 1j, 0]))


@case("labels goes up to class 2, but class_names has 2 names")
def npz_with_too_few_class_names(path: Path) -> Made:
    return npz(path / "g.npz", labels=np.array([0, 1, 2, 0]), class_names=np.array(["a", "b"]))


@case("arrays of adj do not fit together")
def npz_with_a_huge_shape(path: Path) -> Made:
    return npz(path / "g.npz", adj_shape=np.array([2**40, 2**40]))


@case("labels has 3 rows for 4 nodes")
def npz_with_too_few_labels(path: Path) -> Made:
    return npz(path / "g.npz", labels=np.array([0, 1, 0]))


@case("labels must be whole numbers")
def npz_with_fractional_labels(path: Path) -> Made:
    return npz(path / "g.npz", labels=np.array([0.5, 1, 0, 1]))


@case("attr_data holds a number that is missing")
def npz_with_nan(path: Path) -> Made:
    return npz(path / "g.npz", attr_data=np.array([1, np.nan, 1, 1]))


@case("negative weight")
def npz_with_a_negative_weight(path: Path) -> Made:
    return npz(path / "g.npz", adj_data=np.array([1.0, -1, 1, 1]))


# GraphML and GML
LAUGHS = """<?xml version="1.0"?><!DOCTYPE g [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;">
<!ENTITY c "&b;&b;&b;&b;&b;&b;">]><graphml><graph id="&c;" edgedefault="undirected"/></graphml>"""


@case("has a document type")
def graphml_with_entities(path: Path) -> Made:
    (path / "g.graphml").write_text(LAUGHS)
    return path / "g.graphml"


@case("has a document type")
def graphml_that_names_another_file(path: Path) -> Made:
    text = '<!DOCTYPE g [<!ENTITY a SYSTEM "file:///etc/passwd">]><graphml>&a;</graphml>'
    (path / "g.graphml").write_text(text)
    return path / "g.graphml"


@case("not GraphML that NetworkX can read")
def graphml_cut_short(path: Path) -> Made:
    (path / "g.graphml").write_text('<graphml><graph edgedefault="directed"><node id="a">')
    return path / "g.graphml"


@case("not GraphML that NetworkX can read|has no nodes")
def xml_that_is_no_graph(path: Path) -> Made:
    (path / "g.graphml").write_text("<html/>")
    return path / "g.graphml"


@case("not GML that NetworkX can read")
def gml_that_is_none(path: Path) -> Made:
    (path / "g.gml").write_text("graph [ node [ id ]")
    return path / "g.gml"


@case("not GML that NetworkX can read")
def gml_in_another_encoding(path: Path) -> Made:
    (path / "g.gml").write_bytes(b"\xff\xfe\x00\x01")
    return path / "g.gml"


@pytest.mark.parametrize(
    ("words", "make"), [(words, make) for _, words, make in CASES], ids=[c[0] for c in CASES]
)
def test_one_sentence_and_nothing_written(words, make, tmp_path, monkeypatch, capsys):
    made = make(tmp_path)
    path, options = made if isinstance(made, tuple) else (made, [])
    before = sorted(tmp_path.rglob("*"))
    arguments = ["train", str(path), "--out", str(tmp_path / "model"), "--epochs", "1", *options]
    monkeypatch.setattr(sys, "argv", ["deepgat", *arguments])
    with pytest.raises(SystemExit) as exit_:
        main()
    said = capsys.readouterr().err
    assert exit_.value.code == 2
    assert said.startswith("error: ")
    assert said.count("\n") == 1, said
    assert re.search(words, said), said
    assert "Traceback" not in said
    assert said.rstrip("\n").isprintable()
    assert sorted(tmp_path.rglob("*")) == before


def test_there_are_many_cases():
    assert len(CASES) >= 60
    assert len({name for name, _, _ in CASES}) == len(CASES)


def mutate(content: bytes, changes: list[tuple[int, int, int]]) -> bytes:
    raw = bytearray(content)
    for how, place, value in changes:
        at = place % (len(raw) + 1)
        if how == 0 and at < len(raw):
            raw[at] = value
        elif how == 1:
            raw.insert(at, value)
        elif how == 2:
            del raw[at : at + 1 + value % 8]
        else:
            del raw[at:]
    return bytes(raw)


CHANGES = st.lists(
    st.tuples(st.sampled_from([0, 0, 0, 1, 1, 2, 3]), st.integers(0, 10**4), st.integers(0, 255)),
    min_size=1,
    max_size=6,
)


def attempt(path: Path) -> None:
    """Success, or one sentence."""
    try:
        read_graph(path, ReadOptions())
        load_graph(path)
    except UserError as error:
        said = str(error)
    else:
        return
    assert "\n" not in said


@pytest.mark.slow
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(nodes=CHANGES, edges=CHANGES)
def test_tables_changed_anywhere_are_read_or_refused(nodes, edges, tmp_path):
    path = folder(tmp_path / "g")
    (path / "nodes.csv").write_bytes(mutate(NODES.encode(), nodes))
    (path / "edges.csv").write_bytes(mutate(EDGES.encode(), edges))
    attempt(path)
    folder(path)
    (path / "edges.csv").write_bytes(mutate(EDGES.encode(), edges))
    attempt(path)


def valid(tmp_path: Path, kind: str) -> bytes:
    if kind == "npz":
        return npz(tmp_path / "valid.npz", labels=np.array([0, 1, 0, 1])).read_bytes()
    import networkx as nx

    graph = nx.Graph([(0, 1), (1, 2)])
    for node in graph:
        graph.nodes[node].update(label=str(node), x=node / 2)
    room = io.BytesIO()
    (nx.write_graphml if kind == "graphml" else nx.write_gml)(graph, room)
    return room.getvalue()


@pytest.mark.parametrize("kind", ["npz", "graphml", "gml"])
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=CHANGES)
def test_other_files_changed_anywhere_are_read_or_refused(kind, changes, tmp_path):
    if not (tmp_path / kind).exists():
        (tmp_path / kind).write_bytes(valid(tmp_path, kind))
    path = tmp_path / f"g.{kind}"
    path.write_bytes(mutate((tmp_path / kind).read_bytes(), changes))
    attempt(path)
