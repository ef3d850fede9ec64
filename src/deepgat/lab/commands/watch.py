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
from deepgat.errors import printable
from deepgat.lab.experiments import Event, Planned, Record, RunSpec


class RunsView:
    """Shows the events of :func:`deepgat.lab.experiments.run_all` on standard error.

    The part that is redrawn in place is for terminals; a log file has the lines alone.
    """

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.failed = 0
        self.start, self.before = time.monotonic(), 0
        """When the first run began, and how many needed no run."""
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

    def __call__(self, event: Planned | Event) -> None:
        if isinstance(event, Planned):
            self.failed = event.failed
            done = event.present + event.failed
            self.bar.update(self.task, total=event.total, completed=done)
            self.start, self.before = time.monotonic(), done
            self._line(f"{event.total} runs, {event.present} of them already in the store")
            return
        what, spec, record, error = event
        if what == "started":
            if spec not in self.running:
                self.running[spec] = self.rows.add_task(escape(describe(spec)), total=None)
            return
        if spec in self.running:
            self.rows.remove_task(self.running.pop(spec))
        if what != "put off":
            self.bar.advance(self.task)
            self.failed += what == "failed"
        task = self.bar.tasks[0]
        done, total = int(task.completed), int(task.total or 0)
        self.ends = None
        if self.before < done < total:
            now = time.monotonic()
            self.ends = now + (now - self.start) / (done - self.before) * (total - done)
        text = f"{what}: {error}"
        if record is not None:
            scores = record["micro_f1"]
            text = f"val {percent(scores.get('val'))}  test {percent(scores.get('test'))}"
        self._line(f"{done}/{total}  {describe(spec)}  {text}{self._left()}")

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


def describe(run: RunSpec | Record) -> str:
    """A run, or the record of one, in a few words."""
    plain = run.to_dict() if isinstance(run, RunSpec) else run
    data, settings, seed = plain["data"], plain["settings"], plain["training"].get("seed")
    kind = settings.get("score", settings.get("quality", ""))
    depth = f"L={settings['num_layers']}" if settings["num_layers"] else ""
    what = " ".join(filter(None, [plain["system"], kind, depth]))
    return printable(f"{data['dataset']} {data['split']}  {what}  seed {seed}")


def duration(seconds: float) -> str:
    """ "42 s", "3 min", "2 h 05 min"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"
