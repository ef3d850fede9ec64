"""A live view of many runs: a line for each that ended, and what is running and left below."""

from __future__ import annotations

import time

from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from deepgat.cli.show import ERR, percent
from deepgat.lab.experiments import Event, RunSpec
from deepgat.lab.experiments.pool import Failed, Finished, Planned, PutOff, Started


class RunsView:
    """Shows the events of :func:`deepgat.lab.experiments.run_all` on standard error.

    The part that is redrawn in place is for terminals; a log file has the lines alone.
    """

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.failed = 0
        self.ends: float | None = None
        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("runs"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
        )
        self.task = self.bar.add_task("", total=None)
        self.rows = Progress(TextColumn("  {task.description}"), TimeElapsedColumn())
        self.running: dict[RunSpec, TaskID] = {}
        self.live = Live(console=ERR, get_renderable=self._picture, transient=True)

    def __enter__(self) -> RunsView:
        if not self.quiet and ERR.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def __call__(self, event: Event) -> None:
        match event:
            case Planned(total, present, failed):
                self.failed = failed
                self.bar.update(self.task, total=total, completed=present + failed)
                self._line(f"{total} runs, {present} of them already in the store")
            case Started(spec):
                if spec not in self.running:
                    self.running[spec] = self.rows.add_task(escape(describe(spec)), total=None)
            case Finished(spec, record, seconds_left):
                self.ends = time.monotonic() + seconds_left
                scores = record["micro_f1"]
                text = f"val {percent(scores.get('val'))}  test {percent(scores.get('test'))}"
                self._ended(spec, f": {text}", 1)
            case Failed(spec, error):
                self.failed += 1
                self._ended(spec, f" failed: {error}", 1)
            case PutOff(spec, problem):
                self._ended(spec, f" is tried again after the others: {problem}", 0)

    def _ended(self, spec: RunSpec, how: str, advance: int) -> None:
        if spec in self.running:
            self.rows.remove_task(self.running.pop(spec))
        self.bar.advance(self.task, advance)
        overall = self.bar.tasks[0]
        progress = f"{overall.completed:.0f}/{overall.total or 0:.0f}"
        self._line(f"{progress}  {describe(spec)}{how}{self._left()}")

    def _left(self) -> str:
        if self.ends is None:
            return ""
        return f"  about {duration(max(0.0, self.ends - time.monotonic()))} left"

    def _line(self, text: str) -> None:
        if not self.quiet:
            ERR.print(text, soft_wrap=True, markup=False)

    def _picture(self) -> Group:
        failed = f"  {self.failed} failed" if self.failed else ""
        self.bar.update(self.task, description=self._left() + failed)
        return Group(self.bar, self.rows)


def describe(spec: RunSpec) -> str:
    """A run in a few words."""
    system = f"{spec.system} {spec.settings.to_dict().get('score', '')}".strip()
    return f"{spec.data.dataset} {spec.data.split}  {system} L={spec.layers}  seed {spec.seed}"


def duration(seconds: float) -> str:
    """ "42 s", "3 min", "2 h 05 min"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"
