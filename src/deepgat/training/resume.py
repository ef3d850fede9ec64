"""Saves the state of a training run at intervals, and resumes the run from it.

One safetensors file holds the model's and the best epoch's weights, the optimiser's state, the
targets of self-training, the random numbers and the epochs so far. It is renamed into place, so it
is always whole. On a CPU a resumed run ends with exactly the weights of one that was never
interrupted.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from deepgat.data.tables.opening import opened, parse_json
from deepgat.errors import UserError
from deepgat.files import CannotWrite, write_whole

FORMAT = "2"


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
    val_score: float | None = None
    """On validation nodes, higher is better: the metric, if one picks the epoch; the weighted share
    of right predictions, if errors and weights of classes do."""


class Saved(NamedTuple):
    """The content of a file."""

    tensors: dict[str, Tensor]
    history: list[Epoch]
    seconds: float


@dataclass(frozen=True)
class Progress:
    """The file of one training run."""

    path: Path
    every: int
    """Epochs between two saves."""
    key: str = ""
    """Fingerprint of the run: the file of another run is refused."""
    resume: bool = False
    """Resume from the file if it exists."""
    pause: int = 0
    """Stop after so many epochs, to be resumed; 0: go on to the end."""
    to_the_end: bool = False
    """Save the state when training ends or pauses too."""
    chosen: Mapping[str, Any] = field(default_factory=dict)
    """Training settings that were chosen because memory is scarce: a resumed run keeps them."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise UserError(f"save_every is {self.every}: expected 1 or more epochs")

    def write(
        self, tensors: Mapping[str, Tensor], history: Sequence[Epoch], seconds: float
    ) -> None:
        whole = {name: item.detach().cpu().contiguous().clone() for name, item in tensors.items()}
        description = {
            "format": FORMAT,
            "key": self.key,
            "history": json.dumps([astuple(epoch) for epoch in history]),
            "seconds": str(seconds),
            "chosen": json.dumps(dict(self.chosen)),
        }
        try:
            write_whole(self.path, save(whole, description))
        except CannotWrite as error:  # the run itself is not lost for that
            warnings.warn(f"{error}; training goes on without it", stacklevel=2)

    def remove(self, key: str) -> None:
        """Remove the file, unless it is that of another run."""
        with suppress(UserError):
            if replace(self, key=key, resume=True).read() is not None:
                self.path.unlink(missing_ok=True)

    def begun_with(self) -> dict[str, Any] | None:
        """``chosen`` of the run to resume; None if there is nothing to resume from."""
        if not (self.resume and self.path.exists()):
            return None
        try:
            with opened(self.path), safe_open(str(self.path), "pt") as file:
                return dict(parse_json((file.metadata() or {}).get("chosen", "{}"), "chosen"))
        except (SafetensorError, ValueError, TypeError) as error:
            raise self._damaged() from error

    def read(self) -> Saved | None:
        """What was saved; None if there is nothing to resume from."""
        if not (self.resume and self.path.exists()):
            return None
        try:
            with opened(self.path), safe_open(str(self.path), "pt") as file:
                description = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            history = [Epoch(*row) for row in parse_json(description["history"], "history")]
            seconds, written_for = float(description["seconds"]), description["key"]
        except (SafetensorError, KeyError, ValueError, TypeError) as error:
            raise self._damaged() from error
        if description.get("format") != FORMAT or written_for != self.key:
            raise UserError(
                f"{self.path} belongs to another training run, with other data or settings: remove "
                "it, or save this run elsewhere"
            )
        return Saved(tensors, history, seconds)

    def _damaged(self) -> UserError:
        return UserError(f"{self.path} is damaged: remove it to train from the start")


@dataclass(frozen=True)
class Held(Progress):
    """Progress that keeps the last state in memory, and in a file if ``on_disk``."""

    held: list[Saved] = field(default_factory=list)
    """The last state, if there is one."""
    on_disk: bool = False

    def write(
        self, tensors: Mapping[str, Tensor], history: Sequence[Epoch], seconds: float
    ) -> None:
        whole = {name: item.detach().cpu().clone() for name, item in tensors.items()}
        self.held[:] = [Saved(whole, list(history), seconds)]
        if self.on_disk:
            super().write(tensors, history, seconds)

    def begun_with(self) -> dict[str, Any] | None:
        return super().begun_with() if self.on_disk else None

    def read(self) -> Saved | None:
        if not self.held and self.on_disk and (found := super().read()) is not None:
            self.held.append(found)
        return self.held[0] if self.held else None
