"""``auto``: tries a few complete recipes on a graph and keeps what validation nodes like best.

1. The graph's looks (:mod:`deepgat.training.looks`) rank the portfolio's members. The first of
   them is the favourite.
2. Every member is trained for a few epochs, the cheap ones first. Where labels are many these are
   trained to their end, except on a CPU: they start slowly.
3. The favourite is trained to its end, then the best of the others: where labels are few only those
   that are ahead of it, unless it has learnt nothing. On a CPU and an easy graph it is left if
   another is ahead of it by more than chance and a slow start explain.
4. One of those takes the favourite's place if it is better. Where labels are few, it must be better
   by more than chance would have it, unless the favourite does no better than the largest class.
5. The mean of the best and of all that are level with it takes its place, where labels are few only
   that with its companion (:mod:`deepgat.training.ensembling`), of which it then has two seeds,
   except on a CPU. With ``quality="best"`` that mean has five seeds of the best and of the
   companion, and whatever else helps.
6. Few labels that were drawn by class do not say how frequent classes are: probabilities are
   multiplied by what predictions say of that (:mod:`deepgat.training.class_shares`).

Only validation nodes decide; test nodes are scored once, at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from deepgat.data import NodeDataset
from deepgat.errors import Diverged, UserError
from deepgat.models import Network
from deepgat.models.registry import ENSEMBLE
from deepgat.ops.list_checks import check_edge_index
from deepgat.training.class_shares import class_factors
from deepgat.training.device import choose_device, lacks_memory, out_of_memory
from deepgat.training.ensembling import joined, members_of
from deepgat.training.evaluate import evaluate, nodes_of
from deepgat.training.forecast import TO_THE_END, Forecast
from deepgat.training.inputs import prepare
from deepgat.training.judge import Judge
from deepgat.training.leaderboard import Trial, leaderboard, row, warning_of
from deepgat.training.looks import look_at
from deepgat.training.loop import train
from deepgat.training.memory import Choice, NoRoom, choose
from deepgat.training.minibatch import in_chunks
from deepgat.training.portfolio import (
    CHEAP,
    COMPANIONS,
    LIGHT,
    PORTFOLIO,
    companion,
    ranked,
)
from deepgat.training.recipes import drop_unsuited_self_training
from deepgat.training.resume import Epoch, Held
from deepgat.training.run import ModelCard, Run
from deepgat.training.search import Request, Search, Step
from deepgat.training.settings import TrainSettings

SCREENED, LONGER = 30, 60
"""Epochs after which the members that go on are chosen: on a CPU fewer for members that are
neither cheap nor the favourite nor its companion."""
TRIED = {"fast": 1, "good": 5, "best": 100}
"""How many of the ranked members are tried; the cheap ones come on top, but with "fast"."""
FINALISTS = {"fast": 0, "good": 3, "best": 5}
"""How many members beside the favourite are trained to their end."""
FOR_SCREENING, IN_ALL = 80.0, 260.0
"""What the others' first epochs, and the whole search but for the companion, may cost on a CPU
unless quality is "best": in epochs of ``deep``, never in seconds, so that a search gives the same
result every time."""
EASY = 0.95
"""Where the best score is at least this, a favourite that starts late is not worth its time."""
MORE_SEEDS, APART = 4, 1000
"""More seeds of a member, and how far apart: searches with seeds 0, 1, … share no network."""
STATES = ("screened", "progress")
"""Endings of files: a resumed member, too, is judged as it was after its first epochs."""
EVERY = 25
"""Epochs between two saves, where there is a folder to save to."""


class _Stop(KeyboardInterrupt):
    """The time is up: training ends as if by Ctrl-C, and what is best so far is kept."""


def train_auto(
    data: NodeDataset,
    request: Request | None = None,
    seed: int = 0,
    on_step: Callable[[Step], None] | None = None,
    folder: Path | None = None,
    resume: bool = False,
    every: int | None = None,
    as_asked: bool = False,
) -> Run:
    """Search for the best recipe for this graph; the run has the model and the leaderboard.

    Args:
        data: one graph or several.
        request: quality, metric, time limit and training settings.
        seed: of the weights and dropout.
        on_step: called after every epoch, to show progress. If it has a method ``restored``, that
            gets the steps which a resumed member goes on from.
        folder: where to save states of the members, so that a search that was killed can be
            resumed; :func:`forget` deletes them once the model is safe.
        resume: take up the states that are there.
        every: epochs between two saves; left out, ``EVERY``.
        as_asked: train every member as it is, however much memory there is; a search is then the
            same everywhere.
    """
    found = _Auto(data, request or Request(), seed, on_step, folder, resume, every, as_asked)
    return found.run()


def forget(folder: Path) -> None:
    """Delete the states of members that a search has left in its folder, and the folder."""
    for ending in STATES:
        for path in folder.glob(f"*.{ending}"):
            path.unlink(missing_ok=True)
    with suppress(OSError):  # it is not there, or holds something else
        folder.rmdir()


class _Auto:
    def __init__(
        self,
        data: NodeDataset,
        request: Request,
        seed: int,
        on_step: Callable[[Step], None] | None,
        folder: Path | None,
        resume: bool,
        every: int | None = None,
        as_asked: bool = False,
    ) -> None:
        data.check()
        data.check_labels()
        for graph in data.graphs:
            check_edge_index(graph.edge_index, graph.num_nodes)
        self.data, self.request, self.seed, self.on_step = data, request, seed, on_step
        self.folder, self.resume, self.as_asked = folder, resume, as_asked
        self.every = EVERY if every is None else every
        self.metric, self.training = request.metric(data), request.training_for(data)
        self.device = choose_device(str(request.training.get("device", "auto")))
        self.looks = look_at(data)
        names = ranked(self.looks)
        tried = names[: TRIED[request.quality]]
        if request.quality != "fast":
            tried += self._companion()
            tried += CHEAP
        elif self._little_time and request.num_layers is None:
            tried = [LIGHT.get(name, name) for name in tried]
        if request.num_layers is not None and not any(map(_is_deep, tried)):
            if request.quality == "fast":
                raise UserError(
                    f"num_layers is of the recipes of deep, but on this graph {tried[0]} is the "
                    "one that quality=fast trains: leave it out, or name a model"
                )
            tried.append("deep")
        self.trials = [self._trial(name, seed) for name in tried]
        self.judge = Judge.of(data, self.metric, self.looks)
        self.start = time.perf_counter()
        repeated = [names[0]] if request.quality == "best" else self._companion()
        self.forecast = Forecast(
            self.trials, self._first_epochs, self._at_once, self._more_seeds, repeated
        )
        self.stopped = ""
        """ "time" or "interrupted", once the search has to end."""
        self.refused: UserError | None = None

    def run(self) -> Run:
        favourite = self._screen()
        self._finish_the_best(favourite)
        if self.request.quality == "fast":
            self._try_more_if_useless(favourite)
        chosen, reason = self._choose(favourite)
        repeated = self.forecast.repeated = self._worth_more_seeds(chosen)
        for more in range(1, self._more_seeds + 1):  # as many of each, should the time be up
            for name in repeated:
                if not self._over():
                    self.trials.append(self._trial(name, self.seed + APART * more))
                    self._train(self.trials[-1])
        try:
            return self._finish(chosen, reason)
        except KeyboardInterrupt:  # all is trained: it would be a pity to lose it now
            self.stopped = self.stopped or "interrupted"
            return self._finish(chosen, reason)

    def _screen(self) -> Trial:
        """Train every member for a few epochs, the cheap ones first.

        Returns the favourite, or the next in rank if that cannot be trained.
        """
        favourite = self.trials[0]
        left = FOR_SCREENING if self._frugal else float("inf")
        for trial in sorted(self.trials, key=lambda t: (t.name not in CHEAP, t is not favourite)):
            epochs, leader = self._first_epochs(trial), self._leader()
            if self._unbeatable(leader):
                trial.outcome = f"not tried: hardly anything beats the score of {leader.name}"
            elif self._over() and leader.in_play:
                trial.outcome = "not tried: stopped"
            elif trial is favourite:
                self._train(trial, epochs if len(self.trials) > 1 else 0)
            elif self._at_once(trial):
                self._train(trial)
            elif epochs * trial.cost > left and not self._wanted(trial):
                trial.outcome = "not tried: too costly on a CPU but for quality=best"
            else:
                left -= epochs * trial.cost
                self._train(trial, epochs)
        return next((trial for trial in self.trials if trial.in_play), favourite)

    def _finish_the_best(self, favourite: Trial) -> None:
        """Train to their end what may be the best: the favourite first, then by score."""
        leader = self._leader()
        easy = self._frugal and leader.val >= EASY
        late = easy and self.judge.behind(favourite, leader)
        if favourite.in_play and not favourite.finished and not late and not self._over():
            self._train(favourite)
        left = IN_ALL - sum(t.epochs * t.cost for t in self.trials)
        left = left if self._frugal else float("inf")
        others = [t for t in self.trials if t.in_play and not t.finished and t is not favourite]
        others.sort(key=lambda t: (t.name in COMPANIONS, -t.val))
        for place, trial in enumerate(others):
            finished = [t for t in self.trials if t.finished]
            leader = max(finished, key=lambda t: t.val, default=trial)
            hopeless = self._unbeatable(leader) or self.judge.behind(trial, leader)
            hopeless |= self._not_worth_it(trial, leader, place, left)
            if not self._over() and not (hopeless and finished):
                left -= TO_THE_END * trial.cost
                self._train(trial)

    def _not_worth_it(self, trial: Trial, leader: Trial, place: int, left: float) -> bool:
        """Whether the time for its other epochs is better saved, though it may be the best."""
        if trial.name in COMPANIONS:
            return False  # of use if it is level
        settled = self.looks.few_labels and not self.judge.useless(leader)
        settled &= self.request.quality != "best"
        dear = settled or TO_THE_END * trial.cost > left
        return place >= FINALISTS[self.request.quality] or (dear and trial.val <= leader.val)

    def _try_more_if_useless(self, favourite: Trial) -> None:
        """Train the cheap members, too, if the favourite failed, or learnt nothing to its end."""
        if favourite.in_play:
            assert favourite.fitted is not None
            ended = favourite.fitted.stopped == "patience"
            if not (ended and self.judge.useless(favourite)):
                return
        cheap = [self._trial(name, self.seed) for name in CHEAP]
        self.trials += cheap
        for trial in cheap:
            if not self._over():
                self._train(trial)

    @property
    def _more_seeds(self) -> int:
        """With how many more seeds members are trained that are worth it."""
        if self.request.quality == "best":
            return 0 if self._in_parts else MORE_SEEDS
        return int(self.request.quality == "good" and self.looks.few_labels and not self._frugal)

    def _worth_more_seeds(self, chosen: Trial) -> list[str]:
        """The companion, if it is chosen or averaged with the chosen member; with "best" both."""
        in_parts = chosen.card is None or chosen.card.training.in_parts  # no mean is made of it
        if in_parts or self._unbeatable(chosen):
            return []
        others = [t for t in self.trials if t.name in COMPANIONS and t is not chosen]
        joining = [t.name for t in others if t.may_join and self.judge.level(t, chosen)]
        both = self.request.quality == "best" or chosen.name in COMPANIONS
        return [chosen.name, *joining] if both else joining

    def _companion(self) -> list[str]:
        """The companion, if one is tried: not in batches, where no mean is made."""
        found = None if self._in_parts else companion(self.looks, frugal=self._frugal)
        return [] if found is None else [found]

    @property
    def _in_parts(self) -> bool:
        """Whether batches are asked for."""
        return TrainSettings().with_changes(self.training).in_parts

    def _wanted(self, trial: Trial) -> bool:
        """Whether it is tried whatever it costs."""
        return trial.name in COMPANIONS or (
            self.request.num_layers is not None and _is_deep(trial.name)
        )

    @property
    def _little_time(self) -> bool:
        return self.request.frugal_on(self.device.type)

    @property
    def _frugal(self) -> bool:
        """Whether time is saved: costly members are left out, and patience is shorter."""
        return self.request.quality != "best" and self._little_time

    def _first_epochs(self, trial: Trial) -> int:
        longer = not self._frugal or trial.name in (*CHEAP, *COMPANIONS) or trial is self.trials[0]
        return LONGER if longer else SCREENED

    def _at_once(self, trial: Trial) -> bool:
        """Whether it is trained to its end before the best are chosen."""
        return trial.name in CHEAP and not self.looks.few_labels and not self._frugal

    def _leader(self) -> Trial:
        """The best so far; the first one, as long as there is none."""
        return max(
            (t for t in self.trials if t.in_play), key=lambda t: t.val, default=self.trials[0]
        )

    def _unbeatable(self, leader: Trial) -> bool:
        if self.request.quality == "best" or not leader.in_play:
            return False
        return self.judge.unbeatable(leader)

    def _trial(self, name: str, seed: int) -> Trial:
        plan = PORTFOLIO[name].recipe(
            self.looks, self.training, frugal=self._frugal, num_layers=self.request.num_layers
        )
        plan = drop_unsuited_self_training(plan, self.data, self.training)
        plan = plan._replace(training=replace(plan.training, seed=seed))
        held = Held(
            Path(),
            self.every if self.folder is not None else 10**9,
            resume=self.resume,
            to_the_end=True,
            on_disk=self.folder is not None,
        )
        return Trial(name, plan, seed, held)

    def _train(self, trial: Trial, pause: int = 0) -> Trial:
        """Train a member to its end, or for so many epochs; errors of its own end it alone."""
        training = trial.plan.training
        try:
            card = ModelCard.of(self.data, trial.plan)
            model = card.build()
            trial.held = replace(trial.held, pause=pause, key=card.digest())
            if self.folder is not None:
                path = self.folder / f"{trial.name}-{trial.seed}.{STATES[0 if pause else 1]}"
                further = self.resume and path.exists()
                trial.held = replace(trial.held, path=path, held=[] if further else trial.held.held)
            if trial.choice is None and self.as_asked:
                trial.choice = Choice(training, training.checkpoint)
            elif trial.choice is None:
                whole = trial.name in COMPANIONS
                begun = trial.held.begun_with()
                trial.choice = choose(model, self.data, training, begun, in_batches=not whole)
            trial.held = replace(trial.held, chosen=trial.choice.changes)
            card = replace(card, training=trial.choice.training)
            settings = trial.choice.settings
            fitted = train(model, self.data, settings, _Watch(self, trial), progress=trial.held)
        except NoRoom as error:
            self.refused, trial.outcome = error, "not tried: too little memory"
            return trial
        except RuntimeError as error:  # the estimate of memory was too low
            if self.as_asked or not lacks_memory(error):
                raise
            self.refused = UserError(out_of_memory(error))
            trial.outcome = "not trained: too little memory"
            return trial
        except Diverged:
            trial.outcome = "diverged"
            return trial
        except KeyboardInterrupt as stop:
            if not isinstance(stop, _Stop) and not any(t.in_play for t in self.trials):
                raise
            self.stopped = self.stopped or "interrupted"
            if trial.fitted is None:
                trial.outcome = "not tried: stopped"
            return trial
        if fitted.stopped == "interrupted":
            self.stopped = self.stopped or "interrupted"
        trial.card, trial.model, trial.fitted = card, model, fitted
        try:
            trial.logits, collapsed = self._look_at_outputs(model, card.training.chunk)
        except KeyboardInterrupt:  # keep what was trained
            self.stopped = self.stopped or "interrupted"
            trial.logits, collapsed = self._look_at_outputs(model, card.training.chunk)
        trial.val = self.judge.score(trial.logits)
        if collapsed and fitted.stopped != "paused":
            trial.outcome = f"collapsed: {collapsed}"
        model.cpu()
        return trial

    def _step(self, trial: Trial, epoch: Epoch) -> Step:
        number = 1 + sum(t.fitted is not None for t in self.trials if t is not trial)
        limit = self.request.time_limit
        share = self.forecast.after(trial, epoch, min(self._seconds() / limit, 1) if limit else 0)
        score_ = epoch.val_f1 if epoch.val_score is None else epoch.val_score
        best = max(score_, *(t.val for t in self.trials if t.in_play), -float("inf"))
        return Step(trial.name, number, len(self.trials), epoch, best, share, trial.seed)

    def _seconds(self) -> float:
        return time.perf_counter() - self.start

    def _over(self) -> bool:
        limit = self.request.time_limit
        if not self.stopped and limit is not None and self._seconds() > limit:
            self.stopped = "time"
        return bool(self.stopped)

    @torch.no_grad()
    def _logits(self, model: Network, chunk: int) -> tuple[list[Tensor], Tensor]:
        """Of all nodes graph by graph, and of the validation nodes of all graphs."""
        model.to(self.device).eval()
        graphs = prepare(model, self.data, torch.device("cpu") if chunk else self.device)
        if chunk:
            graphs = [in_chunks(graph, chunk, self.device) for graph in graphs]
        every = [graph.run(model).logits.float() for graph in graphs]
        return every, nodes_of(every, graphs, "val")[0].cpu()

    def _look_at_outputs(self, model: Network, chunk: int) -> tuple[Tensor, str]:
        """The logits of the validation nodes, and in what way the network has collapsed, if so."""
        _, logits = self._logits(model, chunk)
        if self.data.multi_label:
            return logits, ""
        if len(self.judge.labels.unique()) > 1 and len(logits.argmax(1).unique()) == 1:
            spread = (logits - logits.mean(0)).abs().max()
            if float(spread) < 1e-3:
                return logits, "every node gets the same prediction"
        return logits, ""

    def _joined(self, chosen: Trial) -> tuple[ModelCard, Network, float, list[float]]:
        """The chosen member, or its mean with others where that is no worse.

        With its validation score, and the factors of the classes that are not part of that score.
        """
        assert chosen.card is not None
        assert chosen.model is not None
        alone = chosen.card, chosen.model, chosen.val, list[float]()
        if self.request.quality == "fast" or chosen.card.training.in_parts:
            return alone
        add = self.request.quality == "best"
        members = members_of(chosen, self.trials, self.judge, add=add)
        if len(members) == 1 and not self._may_have_factors:
            return alone
        card, model = joined(chosen.card, members)
        every, logits = self._logits(model, card.training.chunk)
        if len(members) > 1 and self.judge.worse(logits, chosen):
            for trial in self.trials:
                trial.share = 0.0
            members = members_of(chosen, [chosen], self.judge)
            card, model = joined(chosen.card, members)
            every, logits = self._logits(model, card.training.chunk)
        val = self.judge.score(logits) if len(members) > 1 else chosen.val
        if self._may_have_factors:
            (graph,), shares = self.data.graphs, every[0].softmax(-1)
            factors = class_factors(shares, graph.y, graph.train_mask, graph.val_mask)
            if factors:
                chosen.share = chosen.share or 1.0
                return *joined(chosen.card, members, factors), val, factors
        return (card, model, val, []) if len(members) > 1 else alone

    @property
    def _may_have_factors(self) -> bool:
        """Whether labels are few and every node counts the same."""
        by_class = self.metric not in ("micro_f1", "accuracy") or self.training.get("class_weight")
        one_graph = len(self.data.graphs) == 1 and not self.data.multi_label
        return self.looks.few_labels and one_graph and not by_class

    def _choose(self, favourite: Trial) -> tuple[Trial, str]:
        trained = [t for t in self.trials if t.finished or (self.stopped and t.in_play)]
        if trained:
            return self.judge.choose(trained, favourite)
        if self.refused is not None:
            raise self.refused
        told = "; ".join(f"{t.name} {t.outcome}" for t in self.trials)
        raise UserError(f"no recipe could be trained on this graph: {told}")

    def _finish(self, chosen: Trial, reason: str) -> Run:
        assert chosen.card is not None
        assert chosen.choice is not None
        assert chosen.model is not None
        assert chosen.fitted is not None
        card, model, val, factors = self._joined(chosen)
        baselines = self.judge.baselines
        warning = warning_of(self.metric, val, baselines)
        if factors:
            before, val = val, self.judge.score(self._logits(model, card.training.chunk)[1])
            reason += (
                "; labels were drawn by class, so each class's probability is multiplied by how "
                f"frequent it is estimated to be ({min(factors):.2g} to {max(factors):.2g}; on "
                f"validation nodes {100 * before:.1f} became {100 * val:.1f})"
            )
        rows = leaderboard(self.trials, chosen)
        if card.system == ENSEMBLE:
            rows.insert(0, row(ENSEMBLE, ENSEMBLE, val, "chosen", card.settings))
            shares = [t.name for t in self.trials if t.share and t.name != chosen.name]
            if others := list(dict.fromkeys(shares)):
                reason += f"; averaged with {', '.join(others)}"
        if self.stopped:
            ended = "its time was up" if self.stopped == "time" else "it was interrupted"
            reason += f"; the search ended early, because {ended}"
        scores = evaluate(model, self.data, card.training.device, chunk=card.training.chunk)
        rows += [row(name, "baseline", val, "baseline") for name, val in baselines.items()]
        for each in rows:  # errors were negated to be maximised
            each["val"] = None if each["val"] is None else abs(each["val"])
        search = Search(self.request, self.metric, self.looks, rows, reason, warning)
        stopped = chosen.fitted.stopped
        if self.stopped == "interrupted" or stopped in ("interrupted", "paused"):
            stopped = self.stopped
        fitted = replace(chosen.fitted, seconds=self._seconds(), stopped=stopped)
        return Run(card, model, fitted, scores, search, chosen.choice.record)


def _is_deep(name: str) -> bool:
    return PORTFOLIO[name].system == "deep"


class _Watch:
    """The callback of a member's training: tells its epochs, and ends it when the time is up."""

    def __init__(self, auto: _Auto, trial: Trial) -> None:
        self.auto, self.trial = auto, trial

    def __call__(self, epoch: Epoch) -> None:
        auto = self.auto
        if auto.on_step is not None:
            auto.on_step(auto._step(self.trial, epoch))
        if auto._over():
            raise _Stop

    def restored(self, history: Sequence[Epoch]) -> None:
        told = getattr(self.auto.on_step, "restored", None)
        if told is not None:
            told([self.auto._step(self.trial, epoch) for epoch in history])
