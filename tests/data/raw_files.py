"""Small raw files in the layouts of the real datasets, made up."""

import json
from pathlib import Path

import numpy as np
import scipy.sparse as sp


def make_coauthor(root: Path, name: str = "CS", nodes: int = 900) -> Path:
    """Shchur's npz: counts as features, a directed edge list with a self-loop, an object array."""
    random = np.random.default_rng(0)
    x = sp.random(nodes, 30, 0.1, format="csr", random_state=0, dtype=np.float32)
    x.data = np.ceil(x.data * 3)
    x.data[0] = 0
    adjacency = sp.random(nodes, nodes, 0.005, format="lil", random_state=1, dtype=np.float32)
    adjacency[3, 3] = 1
    adjacency = adjacency.tocsr()
    amazon = name in ("Photo", "Computers")
    file = f"amazon_electronics_{name.lower()}" if amazon else f"ms_academic_{name[:3].lower()}"
    path = root / name / "raw" / f"{file}.npz"
    path.parent.mkdir(parents=True)
    parts = {
        f"{key}_{part}": getattr(matrix, part)
        for key, matrix in (("attr", x), ("adj", adjacency))
        for part in ("data", "indices", "indptr", "shape")
    }
    labels = random.permutation(np.arange(nodes) % 15)
    names = np.array([{"pickled": True}], dtype=object)
    np.savez(path, labels=labels, class_names=names, **parts)
    return path


def make_heterophilous(root: Path, name: str, classes: int, width: int, share: float) -> Path:
    """An npz of Platonov et al. with 40 nodes, each pair once, and ten splits."""
    random = np.random.default_rng(0)
    path = root / name / "raw" / f"{name}.npz"
    path.parent.mkdir(parents=True)
    parts = random.permuted(np.tile(np.arange(40) % 4, (10, 1)), axis=1)
    np.savez(
        path,
        node_features=(random.random((40, width)) < share).astype(np.float32),
        node_labels=np.arange(40) % classes,
        edges=np.array([(i, (i + 1) % 40) for i in range(40)]),
        train_masks=parts < 2,
        val_masks=parts == 2,
        test_masks=parts == 3,
    )
    return path


def make_wikics(root: Path) -> None:
    """Links out of each node, with a self-loop; 20 splits, and one list of test nodes."""
    random = np.random.default_rng(0)
    raw = root / "WikiCS/raw"
    raw.mkdir(parents=True)
    parts = random.permuted(np.tile(np.arange(20) % 4, (20, 1)), axis=1)
    content = {
        "features": random.random((40, 300)).tolist(),
        "labels": [i % 10 for i in range(40)],
        "links": [[(i + 1) % 40, (i + 5) % 40] for i in range(39)] + [[39]],
        "test_mask": [i >= 20 for i in range(40)],
    }
    for name, chosen in (("train", parts < 2), ("val", parts == 2), ("stopping", parts == 3)):
        content[f"{name}_masks"] = np.pad(chosen, ((0, 0), (0, 20))).tolist()
    (raw / "data.json").write_text(json.dumps(content))


def make_attributed(root: Path) -> None:
    raw = root / "AttributedGraph/flickr/raw"
    raw.mkdir(parents=True)
    sp.save_npz(raw / "attrs.npz", sp.random(20, 12_000, 0.001, format="csr", random_state=0) * 9)
    pairs = [(i, (i + 1) % 20) for i in range(20)]
    lines = [f"{u}\t{v}\n{v}\t{u}\n" for u, v in pairs]
    (raw / "edgelist.txt").write_text("".join(lines))
    (raw / "labels.txt").write_text("".join(f"{i}\t{i % 9 + 1}\n" for i in range(20)))


def make_ppi(raw: Path, first_isolated: bool = False) -> None:
    """Two graphs of 5 nodes per purpose; ids count on from graph to graph, as in the original."""
    raw.mkdir(parents=True)
    random = np.random.default_rng(1)
    for number, purpose in enumerate(("train", "valid", "test")):
        links = [
            {"source": start + u, "target": start + v}
            for start in (0, 5)
            for u, v in ((0, 1), (1, 2), (2, 4), (2, 2), (0, 3))
            if not (first_isolated and u == 0)
        ]
        content = {
            "directed": False,
            "multigraph": False,
            "graph": {},
            "nodes": [{"id": i} for i in range(10)],
            "links": links,
        }
        (raw / f"{purpose}_graph.json").write_text(json.dumps(content))
        np.save(raw / f"{purpose}_feats.npy", random.random((10, 50)))
        np.save(raw / f"{purpose}_labels.npy", random.integers(0, 2, (10, 121)))
        np.save(raw / f"{purpose}_graph_id.npy", np.repeat([2 * number + 1, 2 * number + 2], 5))


def make_flickr(root: Path) -> None:
    """GraphSAINT's four files; node 5 has no class."""
    raw = root / "Flickr/raw"
    raw.mkdir(parents=True)
    ring = sp.csr_matrix((np.ones(8), (np.arange(8), np.roll(np.arange(8), 1))), shape=(8, 8))
    both = sp.csr_matrix(ring + ring.T)
    np.savez(
        raw / "adj_full.npz",
        data=both.data,
        indices=both.indices,
        indptr=both.indptr,
        shape=both.shape,
    )
    np.save(raw / "feats.npy", np.random.default_rng(0).random((8, 500)))
    (raw / "class_map.json").write_text(json.dumps({str(i): i % 7 for i in range(8) if i != 5}))
    (raw / "role.json").write_text(json.dumps({"tr": [0, 1, 5], "va": [2, 3], "te": [4, 6, 7]}))
