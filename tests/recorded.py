"""What the paper's and the authors' models computed when their numbers were first recorded.

``python tests/recorded.py`` prints the record anew; do that only where a change of the numbers is
meant, and say why in the commit.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch

from deepgat.nn import build_model, model_settings
from deepgat.nn.settings import ModelSettings

from graphs import random_edges

FILE = Path(__file__).with_name("recorded.json")
SCORES = {
    "deepgat": ("dp", "sd"),
    "gat": ("ad", "dp", "sd"),
    "gcn": ("row", "symmetric"),
    "oracle": ("sum", "softmax"),
}
CHOICES = [
    (model, score, preset, extra)
    for model, scores in SCORES.items()
    for score in scores
    for preset in ("paper", "authors")
    for extra in ({}, {"update": "linear-skip"}, {"update": "residual"})
]


def settings_of(model: str, score: str, preset: str, extra: dict) -> ModelSettings:
    return model_settings(model, preset, score, layers=3, hidden=4, heads=2, dropout=0.5, **extra)


def compute(settings: ModelSettings) -> dict[str, object]:
    """Logits, loss and gradients of one training step, dropout included, in double precision."""
    n, features, classes = 12, 5, 3
    torch.manual_seed(0)
    model = build_model(settings, features, classes)
    names = [f"{name} {list(tensor.shape)}" for name, tensor in model.state_dict().items()]
    model = model.double().train()
    x = torch.randn(n, features, dtype=torch.double)
    y = torch.arange(n) % classes
    z = torch.rand(n, 3, classes, dtype=torch.double)
    mask = torch.arange(n) < 8
    outputs = model.run(x, random_edges(n, 20), z, y if model.needs_labels else None)
    loss = model.loss(outputs.layer_logits, y, mask.nonzero().squeeze(1))
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    squares = [0.0 if g is None else float(g.square().sum()) for g in gradients]
    return {
        "weights": hashlib.sha256("\n".join(names).encode()).hexdigest(),
        "logits": outputs.logits[0].tolist(),
        "loss": float(loss.detach()),
        "gradients": squares,
    }


def name_of(model: str, score: str, preset: str, extra: dict) -> str:
    return " ".join([model, score, preset, *extra.values()])


if __name__ == "__main__":
    record = {name_of(*case): compute(settings_of(*case)) for case in CHOICES}
    FILE.write_text(json.dumps(record) + "\n")
