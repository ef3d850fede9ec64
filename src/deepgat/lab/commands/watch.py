"""A live view of many runs: a progress bar, the time left, current runs and latest scores."""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table

from deepgat.cli.show import ERR, percent
from deepgat.lab.experiments import Event, RunSpec
from deepgat.lab.experiments.pool import Failed, Finished, Planned, PutOff, Started, Stepped
from deepgat.training.loop import Epoch

LATEST = 5
"""Number of finished runs that stay visible."""


class RunsView:
    """Shows the events of :func:`deepgat.lab.experiments.run_all` on standard error.

    On a terminal a display that is redrawn in place; elsewhere, such as in a log file, one line
    per run that finished, failed or was put off.
    """

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.running: dict[RunSpec, tuple[float, Epoch | None]] = {}
        self.latest: deque[tuple[RunSpec, str]] = deque(maxlen=LATEST)
        self.failed = 0
        self.ends: float | None = None
        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("runs"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            console=ERR,
        )
        self.task = self.bar.add_task("", total=None, left="")
        self.live = Live(
            console=ERR, get_renderable=self._picture, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> RunsView:
        if not self.quiet and ERR.is_terminal:
            self.live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.live.stop()

    def __call__(self, event: Event) -> None:
        match event:
            case Planned(specs, present, failed, _):
                self.failed = len(failed)
                total, done = len(specs), len(present) + len(failed)
                self.bar.update(self.task, total=total, completed=done)
                self._line(f"{total} runs, {len(present)} of them already in the store")
            case Started(spec):
                self.running[spec] = (time.monotonic(), None)
            case Stepped(spec, epoch):
                self.running[spec] = (self.running[spec][0], epoch)
            case Finished(spec, record, _, left):
                self.running.pop(spec, None)
                scores = record["micro_f1"]
                text = f"val {percent(scores.get('val'))}  test {percent(scores.get('test'))}"
                self.latest.append((spec, text))
                self.ends = None if left is None else time.monotonic() + left
                self.bar.advance(self.task)
                self._line(f"{_progress(self.bar)}  {describe(spec)}: {text}{self._left()}")
            case Failed(spec, error):
                self.running.pop(spec, None)
                self.failed += 1
                self.latest.append((spec, f"failed: {error}"))
                self.bar.advance(self.task)
                self._line(f"{_progress(self.bar)}  {describe(spec)} failed: {error}")
            case PutOff(spec):
                self.running.pop(spec, None)
                note = "no memory left on the GPU: tried again after the others"
                self.latest.append((spec, note))
                self._line(f"{_progress(self.bar)}  {describe(spec)}: {note}")

    def _line(self, text: str) -> None:
        if not self.quiet and not ERR.is_terminal:
            ERR.print(text, soft_wrap=True, markup=False)

    def _left(self) -> str:
        if self.ends is None:
            return ""
        return f"  about {duration(max(0.0, self.ends - time.monotonic()))} left"

    def _picture(self) -> Group:
        failed = f"  {self.failed} failed" if self.failed else ""
        self.bar.update(self.task, left=self._left() + failed)
        return Group(self.bar, self._table())

    def _table(self) -> Table:
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        names = [describe(spec) for spec in (*self.running, *(spec for spec, _ in self.latest))]
        table.add_column("run", no_wrap=True, min_width=min(60, max(map(len, names), default=0)))
        table.add_column("", no_wrap=True, overflow="ellipsis")
        for spec, text in self.latest:
            table.add_row(escape(describe(spec)), escape(text), style="dim")
        for spec, (since, epoch) in self.running.items():
            seconds = duration(time.monotonic() - since)
            now = "starting" if epoch is None else f"epoch {epoch.number}"
            score = "" if epoch is None else f"  val {percent(epoch.val_f1)}"
            table.add_row(escape(describe(spec)), f"{now}{score}  {seconds}")
        return table


def describe(spec: RunSpec) -> str:
    """A run in a few words."""
    score = spec.settings.to_dict().get("score", "")
    system = f"{spec.system} {score}".strip()
    return f"{spec.data.dataset} {spec.data.split}  {system} L={spec.layers}  seed {spec.seed}"


def duration(seconds: float) -> str:
    """ "42 s", "3 min", "2 h 05 min"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def _progress(bar: Progress) -> str:
    task = bar.tasks[0]
    return f"{task.completed:.0f}/{task.total or 0:.0f}"
