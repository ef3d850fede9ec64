"""What the models computed when their numbers were first recorded.

``python tests/recorded.py`` prints the record anew; do that only where a change of the numbers is
meant, and say why in the commit.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from deepgat.models import SYSTEMS, Network
from deepgat.models.registry import LABEL_PROPAGATION
from networks import PAPER_SCORES, network

from graphs import random_edges

FILE = Path(__file__).with_name("recorded.json")
RESIDUALS = ("none", "linear", "identity")
SIZES = {"num_layers": 3, "hidden_channels": 4}
OF_THE_PAPER = {**SIZES, "heads": 2, "dropout": 0.5, "unit_features": False}
CHOICES: dict[str, dict[str, Any]] = {
    f"{system} {score} {preset} {residual}": {
        "system": system, "preset": preset, "score": score, "residual": residual, **OF_THE_PAPER
    }
    for system, scores in PAPER_SCORES.items()
    for score in scores
    for preset in ("paper", "authors")
    for residual in RESIDUALS
} | {
    f"gcn {normalization} {residual}": {
        "system": "gcn", "normalization": normalization, "residual": residual, **SIZES
    }
    for normalization in ("row", "symmetric")
    for residual in RESIDUALS
} | {
    name: {"system": name, **SIZES}
    for name in SYSTEMS
    if name not in (*PAPER_SCORES, "gcn", "residual", LABEL_PROPAGATION)
} | {
    "gat published": {"system": "gat", "heads": 2, **SIZES},
    "deep in steps": {"system": "deep", **SIZES, "step_depth": 2, "attention_from": 1},
    "deep-oracle": {"system": "deep-oracle", **SIZES, "attention_from": 1, "right": 0.6},
    "gcnii deepgat": {"system": "gcnii", "conv": "deepgat", **SIZES},
    "g2 deepgat own": {"system": "g2", "conv": "deepgat", "gate_conv": "own", **SIZES},
    "prenorm gat": {"system": "prenorm", "conv": "gat", **SIZES},
    "prenorm deepgat": {
        "system": "prenorm", "conv": "deepgat", "drop_edge": 0.2, "input_norm": "batch", **SIZES
    },
    "jk lstm": {"system": "jk", "mode": "lstm", **SIZES},
}  # fmt: skip
"""Name → system and settings."""

FEATURES, CLASSES = 5, 3


def made(name: str) -> Network:
    torch.manual_seed(0)
    return network(in_channels=FEATURES, out_channels=CLASSES, **CHOICES[name])


def compute(model: Network) -> dict[str, object]:
    """Logits, loss and gradients of one training step, dropout included, in double precision."""
    n = 12
    names = [f"{name} {list(tensor.shape)}" for name, tensor in model.state_dict().items()]
    model = model.double().train()
    x = torch.randn(n, FEATURES, dtype=torch.double)
    y = torch.arange(n) % CLASSES
    z = torch.rand(n, 3, CLASSES, dtype=torch.double)
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


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: compute(made(name)) for name in CHOICES}) + "\n")
