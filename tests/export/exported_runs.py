"""Runs exported files where deepgat cannot be imported, and compares what they compute.

Not a test: ``python exported_runs.py FOLDER`` runs every NAME.pt2, NAME.onnx and NAME.aoti of the
folder on the graphs in NAME.npz, whose keys are "GRAPH/in/INPUT" and "GRAPH/out/OUTPUT", and prints
{file: the largest difference} as JSON. Differences are relative to the largest number, or to 1.
"""

import importlib.abc
import json
import sys
import warnings
from pathlib import Path

import numpy as np


class NoDeepgat(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("deepgat", "torch_geometric"):
            raise ImportError(f"{name} was imported by an exported program")
        return None


sys.meta_path.insert(0, NoDeepgat())
warnings.simplefilter("ignore")


def runner(file: Path):
    if file.suffix == ".onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(file))
        names = [each.name for each in session.get_outputs()]
        return lambda inputs: dict(zip(names, session.run(None, inputs), strict=True))
    import torch

    if file.suffix == ".aoti":
        from torch._inductor import aoti_load_package

        module = aoti_load_package(str(file))
    else:
        module = torch.export.load(str(file)).module()

    def run(inputs):
        with torch.no_grad():
            found = module(**{name: torch.from_numpy(x) for name, x in inputs.items()})
        return {name: x.numpy() for name, x in found.items()}

    return run


def difference(run, graphs) -> float:
    worst = 0.0
    numbers = sorted({key.split("/")[0] for key in graphs})
    assert numbers
    for number in numbers:
        of = [key.split("/") for key in graphs if key.startswith(f"{number}/")]
        inputs = {name: graphs[f"{number}/in/{name}"] for _, way, name in of if way == "in"}
        found = run(inputs)
        for name in (name for _, way, name in of if way == "out"):
            wanted = graphs[f"{number}/out/{name}"]
            if found[name].shape != wanted.shape:
                return float("inf")
            largest = max(1.0, float(np.abs(wanted).max()))
            apart = float(np.abs(found[name] - wanted).max()) / largest
            worst = max(worst, apart if np.isfinite(apart) else float("inf"))
    return worst


if __name__ == "__main__":
    results = {}
    for file in sorted(Path(sys.argv[1]).iterdir()):
        if file.suffix in (".pt2", ".onnx", ".aoti"):
            with np.load(file.with_suffix(".npz")) as graphs:
                results[file.name] = difference(runner(file), dict(graphs))
    print(json.dumps(results))
