"""What is chosen where memory is scarce, by the estimate, and what is told of it."""

import math
import re
import subprocess
import sys
import warnings
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

import deepgat
from deepgat.cli import app
from deepgat.errors import UserError
from deepgat.machine import _cgroup_memory, free_memory, memory_bound
from deepgat.model_folder import save_run, saved_auto_record, saved_record
from deepgat.training import memory
from deepgat.training.auto import train_auto
from deepgat.training.memory import read_memory
from deepgat.training.recipes import recipe
from deepgat.training.resume import Progress
from deepgat.training.run import ModelCard, train_once
from deepgat.training.search import Request
from tiny import tiny_dataset

CPU = torch.device("cpu")
NODES, LEAST = 240, 80
NONSENSE = ["0", "-1", "abc", "1e30G", "nan", "inf", "", "4X", "G", 0, -1.0, math.nan, True]


@pytest.fixture(scope="module")
def data():
    return tiny_dataset(NODES)


def plan(model="gcn", layers=6, **training):
    usual = {"epochs": 2, "device": "cpu", "self_training": 0.0}
    return recipe(model, num_layers=layers, hidden_channels=32, training=usual | training)


@pytest.fixture
def leave(monkeypatch):
    """Sets what may be used, in MiB; with ``firm=False`` that is only what the machine says."""
    for name in ("LIBRARIES", "BUILDING", "CHUNKED"):
        monkeypatch.setattr(memory, name, 0)
    monkeypatch.setattr(memory, "LEAST_NODES", LEAST)
    monkeypatch.setattr(memory, "give_back_freed_memory", lambda: None)  # of the whole process

    def of(mebibytes: float, firm: bool = True) -> None:
        def free(device: torch.device, trust: float) -> float:
            return mebibytes * 2**20 * (1 if firm else trust)

        monkeypatch.setattr(memory, "free_memory", free)

    return of


def weights(run):
    return list(run.model.state_dict().values())


def same(one, other):
    return all(map(torch.equal, weights(one), weights(other)))


# ------------------------------------------------------------------------------------- the bound


@pytest.mark.parametrize(
    ("size", "expected"),
    [("4G", 2**32), ("1.5 MiB", 1.5 * 2**20), ("500kb", 512_000), ("1e6", 1e6), (4096, 4096.0)],
)
def test_sizes(size, expected):
    assert read_memory(size) == expected


@pytest.mark.parametrize("size", NONSENSE)
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(UserError, match=r"max_memory is .*: expected a size such as 4G"):
        read_memory(size)


def test_a_wrong_bound_is_refused_before_anything_is_read(data):
    result = CliRunner().invoke(app, ["train", "no-such-graph", "--max-memory", "abc"])
    assert isinstance(result.exception, UserError)
    assert str(result.exception).startswith("max_memory is 'abc': expected")
    with pytest.raises(UserError, match="max_memory is 0"):
        deepgat.fit(data, "gcn", max_memory=0)
    known = deepgat.DeepGATClassifier("gcn", max_memory="abc")
    with pytest.raises(UserError, match="max_memory is 'abc'"):
        known.fit(data.graph.x.numpy(), data.graph.y.numpy(), data.graph.edge_index.numpy())


def test_the_bound_counts_what_the_process_holds():
    unbounded = free_memory(CPU)
    with memory_bound(2**62):
        assert free_memory(CPU) == pytest.approx(unbounded, rel=0.2)
    with memory_bound(2**34):
        assert free_memory(CPU) < 2**34
    with memory_bound(1):
        assert free_memory(CPU) == 0


@pytest.mark.parametrize(
    ("row", "folder", "limit", "used", "prefix"),
    [
        ("0::/box", "sys/fs/cgroup", "memory.max", "memory.current", ""),
        ("4:memory:/box", "sys/fs/cgroup/memory", "memory.limit_in_bytes",
         "memory.usage_in_bytes", "total_"),
    ],
)  # fmt: skip
def test_the_memory_of_a_container(tmp_path, row, folder, limit, used, prefix):
    assert _cgroup_memory(tmp_path) == math.inf
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"7:cpu:/\n{row}\n")
    assert _cgroup_memory(tmp_path) == math.inf
    for place, most in (("box", "max"), ("", "1000")):  # the outer one is bounded
        here = tmp_path / folder / place
        here.mkdir(parents=True, exist_ok=True)
        (here / limit).write_text(f"{most}\n")
        (here / used).write_text("700\n")
        (here / "memory.stat").write_text(f"{prefix}active_file 20\n{prefix}inactive_file 30\n")
    assert _cgroup_memory(tmp_path) == 350


# ------------------------------------------------------------------------------------ the choice


def test_where_everything_fits_nothing_changes(data):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = train_once(data, plan())
        with memory_bound(read_memory("100G")):
            bounded = train_once(data, plan())
    as_asked = train_once(data, plan(), as_asked=True)
    assert same(plain, bounded)
    assert same(plain, as_asked)
    assert plain.card == bounded.card == as_asked.card
    assert "memory" not in bounded.record()


@pytest.mark.parametrize("model", ["gcn", "deep", "jk"])
def test_layers_are_recomputed_first_and_the_bits_are_the_same(data, leave, model):
    whole = train_once(data, plan(model))
    leave(1)
    with pytest.warns(UserWarning, match=r"keeping everything would take about .* MiB of the 1.0"):
        bounded = train_once(data, plan(model))
    assert same(whole, bounded)
    assert torch.equal(whole.evaluation.logits[0], bounded.evaluation.logits[0])
    assert whole.card == bounded.card
    assert bounded.record()["memory"]["checkpoint"] != "none"


def test_then_the_graph_is_cut_and_the_record_says_how(data, leave):
    asked = plan(self_training=0.5, epochs=1)
    leave(0.5)
    with pytest.warns(UserWarning, match="a step sees 4 of .* clusters .*; there is no self-train"):
        run = train_once(data, asked)
    training = run.card.training
    assert (training.batches, training.self_training) == ("clusters", 0.0)
    assert LEAST <= training.chunk <= NODES / 2
    assert run.record()["memory"]["asked"]["batches"] == "none"
    leave(math.inf)
    assert same(run, train_once(data, asked._replace(training=training)))  # from the record


def test_what_the_machine_says_is_no_firm_bound(data, leave):
    """Less than half above it nothing is refused, and the graph stays whole."""
    leave(0.4, firm=False)
    with pytest.warns(UserWarning, match="the backward pass recomputes every layer$"):
        whole = train_once(data, plan(epochs=1))
    assert whole.card.training.batches == "none"
    leave(0.33, firm=False)
    with pytest.warns(UserWarning, match="clusters"):
        cut = train_once(data, plan(epochs=1))
    assert cut.card.training.batches == "clusters"


def test_a_search_keeps_the_bound_too(data, leave, tmp_path):
    request = Request("fast", None, {"epochs": 1, "device": "cpu"})
    whole = train_auto(data, request)
    assert "memory" not in whole.record()
    leave(1.8)
    with pytest.warns(UserWarning, match="about 2.0 MiB of the 1.8 MiB of memory"):
        bounded = train_auto(data, request)
    assert bounded.record()["memory"]["checkpoint"] != "none"
    leave(1.2)
    with pytest.warns(UserWarning, match="clusters"):
        cut = train_auto(data, request)
    assert cut.card.training.batches == "clusters"
    save_run(tmp_path / "model", cut, data)
    assert saved_auto_record(tmp_path / "model", data, request, 0) is not None
    leave(0.01)
    with pytest.raises(UserError, match=r"but 10 KiB more memory may be used: choose fewer"):
        train_auto(data, request)


def test_a_resumed_run_keeps_the_batches_it_began_with(data, leave, tmp_path):
    asked = plan(epochs=3)
    leave(0.5)
    with pytest.warns(UserWarning, match="clusters"):
        whole = train_once(data, asked)
    progress = Progress(tmp_path / "state", every=1)

    def stop(epoch):
        if epoch.number == 2:
            raise RuntimeError("killed")

    with pytest.warns(UserWarning, match="clusters"), pytest.raises(RuntimeError, match="killed"):
        train_once(data, asked, on_epoch=stop, progress=progress)
    leave(math.inf)  # there is room now, but the run goes on as it was
    with pytest.warns(UserWarning, match="clusters"):
        resumed = train_once(data, asked, progress=replace(progress, resume=True))
    assert same(whole, resumed)
    assert whole.card == resumed.card
    save_run(tmp_path / "model", resumed, data)
    seeded = asked._replace(training=replace(asked.training, seed=0))
    assert saved_record(tmp_path / "model", ModelCard.of(data, seeded)) is not None
    other = asked._replace(training=replace(asked.training, lr=0.5))
    assert saved_record(tmp_path / "model", ModelCard.of(data, other)) is None


def test_a_run_begun_on_the_whole_graph_is_not_cut(data, leave, tmp_path):
    progress = Progress(tmp_path / "state", every=1)
    train_once(data, plan(), progress=progress)
    leave(0.5)
    with pytest.raises(UserError, match="the run was begun so"):
        train_once(data, plan(), progress=replace(progress, resume=True))


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (plan("pairnorm"), "PairNorm takes its means over all nodes"),
        (plan(batches="graphs"), "batches=graphs joins whole graphs"),
        (plan(batches="clusters", clusters=2, batch_size=1), "these are batches already"),
    ],
    ids=["PairNorm", "several graphs", "batches"],
)
def test_what_cannot_be_cut_says_so(data, leave, asked, why):
    leave(0.3)
    with pytest.raises(UserError, match=re.escape(f"({why}")):
        train_once(data, asked)


def test_what_fits_in_no_way_is_refused_with_figures(data):
    told = (
        r"training takes about .* MiB even if layers are recomputed, and about .* MiB in the "
        r"smallest batches, but 0 KiB more memory may be used: choose fewer or narrower layers .*"
    )
    with pytest.raises(UserError, match=told):
        deepgat.fit(data, "gcn", num_layers=16, max_memory="1M")


def test_an_explicit_choice_stays(data, leave):
    leave(0.5)
    with pytest.warns(UserWarning, match="clusters"):
        run = train_once(data, plan(checkpoint="layer", epochs=1))
    assert run.record()["memory"]["checkpoint"] == "layer"


# --------------------------------------------------------------------------------- under ulimit -v

SCRIPT = """
import re, resource, sys
from pathlib import Path
import torch
from deepgat.machine import memory_bound
from deepgat.training.run import train_once
from test_memory import plan
from deepgat.training.search import Request
from tiny import tiny_dataset

torch.set_num_threads(1)
data = tiny_dataset(5000)
warm = plan(layers=2, epochs=1)
train_once(tiny_dataset(), warm)
recipe = plan(layers=16, epochs=2)
recipe = recipe._replace(settings=recipe.settings.with_changes({"hidden_channels": 256}))
status, room = Path("/proc/self/status").read_text(), int(sys.argv[1]) * 2**20
held, size = (
    1024 * int(re.search(name + r":\\s+(\\d+)", status)[1]) for name in ("VmRSS", "VmSize")
)
# A bound is on memory in use; the allocator reserves some more, more or less from run to run.
slack = 2**25 if sys.argv[2] == "cut" else 0
resource.setrlimit(resource.RLIMIT_AS, (size + room + slack,) * 2)
if sys.argv[2] == "kept":
    recipe = recipe._replace(training=recipe.training.with_changes({"checkpoint": "none"}))
with memory_bound(held + room if sys.argv[2] == "cut" else None):
    run = train_once(data, recipe, as_asked=sys.argv[2] == "kept")
print(run.memory["checkpoint"], run.card.training.batches)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space")
@pytest.mark.parametrize(
    ("room", "way", "chosen"),
    [
        (250, "kept", None),
        (250, "whole", r"(layer|sqrt) none"),
        (130, "cut", r"\w+ clusters"),
    ],
)
def test_under_a_limit_of_the_address_space(room, way, chosen):
    here = [str(path) for path in sys.path if path]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {here!r}\n{SCRIPT}", str(room), way],
        capture_output=True,
        text=True,
        timeout=120,
    )
    if chosen is None:  # what would have ended in the midst of it
        assert done.returncode != 0
        assert re.search("DefaultCPUAllocator|MemoryError|bad_alloc", done.stderr)
    else:
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(chosen, done.stdout.strip())
        assert "keeping everything would take about" in done.stderr
