"""Saves the state of a training run at intervals, and resumes the run from it.

One safetensors file holds the model's and the best epoch's weights, the optimiser's state, the
targets of self-training, the random numbers and the epochs so far. It is renamed into place, so it
is always whole. On a CPU a resumed run ends with exactly the weights of one that was never
interrupted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from deepgat.errors import UserError
from deepgat.files import write_whole

FORMAT = "1"


@dataclass(frozen=True)
class Epoch:
    """What is known after one epoch."""

    number: int
    loss: float
    val_loss: float
    """At its best temperature, if the monitor calibrates."""
    val_f1: float
    best_number: int = 0
    """The best epoch so far, this one included."""


class Weights:
    """A copy of a model's weights and buffers, to return to."""

    def __init__(self, model: nn.Module) -> None:
        self.names = list(model.state_dict())
        self.model = list(model.state_dict().values())
        self.kept = [item.clone() for item in self.model]

    def named(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.kept, strict=True))

    def keep(self) -> None:
        torch._foreach_copy_(self.kept, self.model)

    def restore(self) -> None:
        torch._foreach_copy_(self.model, self.kept)


@dataclass(frozen=True)
class Progress:
    """The file of one training run."""

    path: Path
    every: int
    """Epochs between two saves."""
    key: str
    """Fingerprint of the run: the file of another run is refused."""
    resume: bool = False
    """Resume from the file if it exists."""
    writes: bool = True
    """Whether this process writes the file; one process of a team does."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise UserError(f"save_every is {self.every}: expected 1 or more epochs")

    def due(self, epoch: int) -> bool:
        return epoch % self.every == 0

    def write(
        self,
        model: nn.Module,
        best: Mapping[str, Tensor],
        optimizer: torch.optim.Optimizer,
        history: list[Epoch],
        seconds: float,
        more: Mapping[str, Tensor],
    ) -> None:
        if not self.writes:
            return
        tensors = {f"model.{name}": item for name, item in model.state_dict().items()}
        tensors |= {f"best.{name}": item for name, item in best.items()}
        for index, state in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": item for name, item in state.items()}
        tensors |= {f"more.{name}": item for name, item in more.items()}
        tensors["random.cpu"] = torch.get_rng_state()
        if (device := _device(model)).type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state(device)
        whole = {name: item.detach().cpu().contiguous().clone() for name, item in tensors.items()}
        description = {
            "format": FORMAT,
            "key": self.key,
            "history": json.dumps([list(asdict(epoch).values()) for epoch in history]),
            "seconds": str(seconds),
        }
        write_whole(self.path, save(whole, description))

    def read(
        self, model: nn.Module, best: Mapping[str, Tensor], optimizer: torch.optim.Optimizer
    ) -> tuple[list[Epoch], float, dict[str, Tensor]]:
        """Restore the state; returns the epochs so far, their seconds and the extra tensors."""
        if not (self.resume and self.path.exists()):
            return [], 0.0, {}
        try:
            with safe_open(str(self.path), "pt") as file:
                description = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            history = [Epoch(*row) for row in json.loads(description["history"])]
            seconds, written_for = float(description["seconds"]), description["key"]
        except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
            raise UserError(f"{self.path} is damaged: remove it to train from the start") from error
        if description.get("format") != FORMAT or written_for != self.key:
            raise UserError(
                f"{self.path} belongs to another training run, with other data or settings: remove "
                "it, or save this run elsewhere"
            )
        _restore(model.state_dict(), under("model.", tensors))
        _restore(best, under("best.", tensors))
        state: dict[int, dict[str, Tensor]] = {}
        for name, item in under("optimizer.", tensors).items():
            index, _, key = name.partition(".")
            state.setdefault(int(index), {})[key] = item
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
        torch.set_rng_state(tensors["random.cpu"])
        if "random.cuda" in tensors and (device := _device(model)).type == "cuda":
            torch.cuda.set_rng_state(tensors["random.cuda"], device)
        return history, seconds, under("more.", tensors)

    def remove(self) -> None:
        """Delete the file: the finished run is saved elsewhere."""
        if self.writes:
            self.path.unlink(missing_ok=True)


def best_of(history: list[Epoch]) -> Epoch | None:
    """The best of the epochs so far."""
    return history[history[-1].best_number - 1] if history else None


def monitored(epoch: Epoch, monitor: str) -> float:
    """The monitored number; smaller is better."""
    match monitor:
        case "loss-and-errors":
            return epoch.val_loss + 1 - epoch.val_f1
        case "val-f1":
            return -epoch.val_f1
        case "train-loss":
            return epoch.loss
    return epoch.val_loss


def _device(model: nn.Module) -> torch.device:
    return next(iter(model.state_dict().values())).device


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names start with the prefix, without the prefix."""
    return {name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)}


@torch.no_grad()
def _restore(to: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> None:
    for name, item in to.items():
        item.copy_(kept[name])
