"""A store of runs that never were, with everything that a report can show."""

from pathlib import Path

from deepgat.lab.experiments import RunSpec, Store
from deepgat.lab.experiments.work import Made
from deepgat.lab.paper.experiments import make_plan, target_specs

from jobs import graded

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \"'`${1}{{data}} \u2028"
"""What a run could be called by someone who means harm, or is careless."""

PLAN = make_plan("authors", datasets=["cs", "cora"], layers=[2, 4, 15], seeds=[0, 1, 2])
HONEST = make_plan("honest", datasets=["cs"], layers=[2, 4], seeds=[0], splits=2)


def measured(wanted: RunSpec, device: str) -> Made:
    """A graded run whose layers were measured, if it asks for that: GAT's all become alike."""
    made = graded(wanted, device)
    record, layers = made.record, wanted.layers
    fall = 0.6 if wanted.system == "gat" else 0.95
    if wanted.system == "deepgat":
        scores = {str(layer): 0.5 + 0.4 * layer / layers for layer in range(layers + 1)}
        record["measures"]["layer-scores"] = {"val": scores, "test": scores}
    if "over-smoothing" in wanted.analysis.measures:
        rows = [
            {
                "layer": layer,
                "energy": 100 * fall ** (2 * layer),
                "relative_energy": fall**layer,
                "neighbor_distance": 0.5 * fall**layer,
                "effective_rank": 1 + 20 * fall**layer,
                "same_class_attention": 0.6 + 0.3 * layer / layers,
                "uniform_same_class_attention": 0.55,
            }
            for layer in range(1, layers + 1)
        ]
        record["measures"]["over-smoothing"] = [rows]
    record["hardware"] = f"a machine {HOSTILE}"
    record["versions"] = {"python": "3", "deepgat": "0.1.0", "commit": "0123456789abcdef"}
    return Made(record, made.arrays)


def make_runs() -> list[Made]:
    """Runs of two protocols."""
    specs = [*target_specs("all", PLAN), *target_specs("depth", HONEST)]
    return [measured(spec, "cpu") for spec in specs]


def make_store(folder: Path) -> Store:
    """Those runs, and one that failed with an error full of markup."""
    store = Store(folder)
    for made in make_runs():
        with store.claim(made.record["signature"]) as mine:
            store.add(mine, made.record, made.arrays)
    failed = target_specs("depth", make_plan(datasets=["cs"], layers=[9], seeds=[7]))[0]
    with store.claim(failed.signature) as mine:
        store.fail(mine, failed, f"RuntimeError: {HOSTILE}", f"Traceback {HOSTILE}")
    return store
