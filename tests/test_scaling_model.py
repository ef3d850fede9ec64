"""The model of many processes: what it counts, and that it holds for what was measured."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="module")
def model():
    folder = str(Path(__file__).parents[1] / "benchmarks")
    sys.path.insert(0, folder)
    yield importlib.import_module("scaling_model")
    sys.path.remove(folder)


@pytest.fixture(scope="module")
def fits(model):
    return sys.modules["scaling_fits"]


@pytest.fixture(scope="module")
def gpu(fits):
    return fits.Device("H200", fits.rows_of("h200"))


def test_bytes_and_messages_of_deep_are_those_that_were_counted(model, fits):
    shares = sys.modules["scaling_team"].shares
    rows = [row for row in fits.rows_of("scaling-2-cores") if row["suite"] == "scaling"]
    rows = [row for row in rows if row["preset"] == "deep" and row["processes"] == 2]
    assert len(rows) >= 5
    for row in rows:
        work = shares(row)
        assert sum(w.received(evaluations=1) for w in work) == sum(row["sent_bytes_per_epoch"])
        assert [w.messages(evaluations=1) for w in work] == row["messages_per_epoch"]


def test_a_fit_finds_constants_and_none_is_negative(fits):
    costs = np.random.default_rng(0).random((9, 2))
    pairs = [(row, float(row @ [3.0, 5e-9])) for row in costs]
    np.testing.assert_allclose(fits.fitted(pairs), [3.0, 5e-9], rtol=1e-5)
    assert (fits.fitted([(row, row[0] * (1 - row[1] / 2)) for row in costs]) >= 0).all()


def test_halos_without_structure_are_all_others_at_a_high_degree(fits):
    assert fits.without_structure(8, 1e6) == pytest.approx(7)
    assert fits.without_structure(2, 1) == pytest.approx(0.5)
    law = fits.Halos(fits.rows_of("scaling-2-cores"), "metis")
    assert law.per_node(1, 20) == 0
    assert law.per_node(4, 20) < law.per_node(16, 20) <= fits.without_structure(16, 20)


def test_one_part_sends_nothing_and_a_slow_network_takes_its_time(model, gpu):
    whole = replace(model.MODELS["DeepGAT"], own=1e8, edges=1e10)
    links = model.Links(nvlink=4e11, network=4e10, latency=1e-5)
    alone = model.predict(gpu, whole, 1, 0.0, links, 100)
    assert alone.sending == 0
    assert alone.bound == "gathering"
    fast = model.predict(gpu, whole, 64, 10.0, links, 100)
    slow = model.predict(gpu, whole, 64, 10.0, replace(links, network=4e9), 100)
    assert slow.bound == "network"
    latency = 1e-5 * whole.messages()
    assert slow.sending - latency == pytest.approx(10 * (fast.sending - latency))
    assert slow.compute == fast.compute < alone.compute
    host = model.predict(gpu, whole, 8, 3.0, links, 100)
    assert (
        host.sending == model.predict(gpu, whole, 8, 3.0, replace(links, network=1.0), 100).sending
    )


def test_the_tables_have_every_measurement_and_no_ratio_beyond_three(model, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["scaling_model.py"])
    model.main()
    _, first, kinds, predictions, *_ = capsys.readouterr().out.split("\n\n")
    ratios = [float(line.split("|")[-2]) for line in first.splitlines()[2:]]
    assert len(ratios) == sum(int(line.split("|")[2]) for line in kinds.splitlines()[2:])
    assert 1 / 3 < min(ratios) <= max(ratios) < 3
    assert "too much" in predictions
    assert "100M nodes" in predictions
