"""A small served model, and a client of it in the same process."""

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import deepgat
from deepgat.serving.served import Served

from service_calls import Calls

EXAMPLE = Path(__file__).parents[2] / "examples" / "club.py"


@pytest.fixture(scope="session")
def club(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example's graph, and a model of it that keeps the graph."""
    folder = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["club.py", str(folder / "graph")])
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    model = deepgat.fit(
        str(folder / "graph"), "deepgat", num_layers=2, training={"epochs": 8, "device": "cpu"}
    )
    model.save(folder / "model", keep_graph=True)
    return folder


@pytest.fixture(scope="session")
def served(club: Path) -> Served:
    return Served.load(club / "model", lambda route: None)


@pytest.fixture
def make_calls(served: Served) -> Iterator[Any]:
    made: list[Calls] = []

    def make(**options: Any) -> Calls:
        made.append(Calls(served, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def calls(make_calls: Any) -> Calls:
    return make_calls()
