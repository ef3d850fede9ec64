"""Runs as TensorBoard reads them: a folder of event files per run."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepgat.tracking.tracked import Described, Tracked, Tracker, missing, tracking_folder

FOLDER = "runs"
"""Where TensorBoard's own writer puts runs, too."""


class TensorBoard(Tracker):
    """Writes every run to a new folder inside ``to``; a resumed run goes on in its own."""

    def __init__(self, to: str | os.PathLike[str] | None = None) -> None:
        try:
            import torch.utils.tensorboard  # noqa: F401 - it asks for the package tensorboard
        except ImportError as error:
            raise missing("tracking by TensorBoard", "tensorboard", "tensorboard") from error
        self.folder = tracking_folder(FOLDER if to is None else to, "a folder")

    def begin(self, described: Described) -> Tracked:
        stem = f"{file_name(described.name)}-{described.key[:8]}"
        number, place = 1, self.folder / stem
        following = self.folder / f"{stem}-2"
        while place.exists() and (not described.resumed or following.exists()):
            number, place = number + 1, following
            following = self.folder / f"{stem}-{number + 1}"
        return _Folder(described, place)


class _Folder(Tracked):
    def __init__(self, described: Described, place: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        super().__init__(described)
        self.place, self.settings = place, dict(described.settings)
        # A resumed run tells all its epochs again: what the folder has of them is outdated.
        again = 1 if place.exists() else None
        self.writer = SummaryWriter(str(place), purge_step=again)

    def write_epoch(self, number: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, number)
        self.writer.flush()  # to be seen at once, and not lost if the process is killed

    def child(self, described: Described) -> Tracked:
        return _Folder(described, self.place / file_name(described.name))

    def write_result(
        self, settings: Mapping[str, Any], values: Mapping[str, float], facts: Mapping[str, Any]
    ) -> None:
        from torch.utils.tensorboard.summary import hparams

        self.settings |= settings
        step = int(values.get("best_epoch", self.last))
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        plain = {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in self.settings.items()
        }
        # add_hparams would make another run of it, in a folder named after the time.
        writer: Any = self.writer.file_writer
        for summary in hparams(plain, dict(values)):
            writer.add_summary(summary)
        lines = (f"{name}: {value}" for name, value in {**self.settings, **facts}.items())
        self.writer.add_text("settings", "".join(f"    {line}\n" for line in lines), step)
        self.writer.flush()

    def close(self, status: str) -> None:
        self.writer.close()


def file_name(name: str) -> str:
    """A name as that of a folder, on any system."""
    return re.sub(r"[^\w.-]+", "-", name)[:100].strip(".-") or "run"
