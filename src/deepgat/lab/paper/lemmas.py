"""A Monte Carlo check of the paper's two lemmas.

Features x_u ~ N(μ_c, Σ_c) for a node u of class c, independent; a linear network (σ = identity)

    h^l = P h^(l-1) (W^l)ᵀ,  h^0 = X,   so   h^l_v = W Σ_u (P^l)_vu x_u  with  W = W^l ⋯ W^1.

- Lemma 1, ``"gcn"``: P_vu = 1/|N_v|.
- Lemma 2, ``"oracle"``: P_vu = o(v, u) / Σ_u o(v, u): no messages between classes.

h^l_v is Gaussian, and with w = row v of P^l, which sums to 1, *exactly*

    mean = Σ_c (Σ_{u ∈ c} w_u) W μ_c,    covariance = Σ_c (Σ_{u ∈ c} w_u²) W Σ_c Wᵀ.

The paper expresses w by path counts: π̌_u is the number of paths of length l from v to u (for the
oracle: within the class), and w = π̌ / ‖π̌‖₁, so the covariance shrinks by ‖π̌‖²₂ / ‖π̌‖²₁ = ‖w‖²₂.
This equals the row of P^l only if all nodes have the same degree (for the oracle: within the
class). Else a path through a node of small degree weighs more than one through a node of large
degree, and the path-count form is wrong. The mean of Lemma 2 is W μ_c in either form.
Shapes: n nodes, E edges, d features, m outputs, C classes, L layers, k examined nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from deepgat import ops
from deepgat.errors import UserError, unknown_name
from deepgat.lab.paper.moment_bands import MomentBands, Moments, moment_bands
from deepgat.ops import EdgeScore, Neighbors, ScoreForm, Uniform, as_neighbors

LEMMAS = ("gcn", "oracle")
BLOCK_BYTES = 8 * 2**20
"""Size of the features drawn at once, small enough for the processor's cache."""


@dataclass(frozen=True, eq=False)
class ClassGaussians:
    """One Gaussian per class: means μ [C, d], covariances Σ [C, d, d] (positive semi-definite)."""

    means: Tensor
    covariances: Tensor

    def __post_init__(self) -> None:
        classes, d = self.means.shape
        if self.covariances.shape != (classes, d, d):
            raise UserError(
                f"covariances has shape {list(self.covariances.shape)}: expected {[classes, d, d]},"
                " one matrix for every row of means"
            )
        lowest = torch.linalg.eigvalsh(self.covariances.double()).min()
        if not torch.allclose(self.covariances, self.covariances.mT) or lowest < -1e-9:
            raise UserError("covariances must be symmetric and positive semi-definite")

    @staticmethod
    def example(classes: int = 2, d: int = 2, separation: float = 2.0) -> ClassGaussians:
        """Means of length ``separation`` along ±axes; Σ_c is correlated, and differs by class."""
        means, covariances = torch.zeros(classes, d).double(), []
        for c in range(classes):
            means[c, (c // 2) % d] = separation * (-1) ** c
            root = torch.eye(d).double() + 0.5 * (-1) ** c * torch.ones(d, d).double().tril(-1)
            covariances.append((1 + 0.5 * c) * root @ root.T)
        return ClassGaussians(means, torch.stack(covariances))

    def draw(self, y: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """``count`` draws of the features of all nodes: [n, count, d] in double precision."""
        values, vectors = torch.linalg.eigh(self.covariances.double())
        roots = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)  # Σ_c = R_c R_cᵀ, singular too
        d = self.means.size(1)
        noise = torch.randn(len(y), count, d, generator=generator, dtype=torch.float64)
        return self.means.double()[y].unsqueeze(1) + noise @ roots[y].mT


@dataclass(frozen=True, eq=False)
class WalkWeights:
    """Row v of P^l for the examined nodes v and l = 1 … L, in both forms; rows sum to 1."""

    exact: Tensor
    """[L, k, n]: rows of P^l."""
    path_count: Tensor
    """[L, k, n]: π̌ / ‖π̌‖₁."""


@dataclass(frozen=True, eq=False)
class LemmaCheck:
    """A lemma's formulas and the empirical moments, for every layer l = 1 … L and examined node.

    ``bands`` and ``path_count_bands`` contain the empirical moments if that form is right: exact
    marginal laws, simultaneous over all numbers of the check by Bonferroni
    (:mod:`deepgat.lab.paper.moment_bands`).
    """

    lemma: str
    nodes: Tensor
    """[k]"""
    degree: Tensor
    """[k]: |N_v|, including v itself."""
    draws: int
    level: float
    exact: Moments
    """mean [L, k, m], covariance [L, k, m, m] of the formula with rows of P^l."""
    path_count: Moments
    """Likewise, of the path-count form."""
    empirical: Moments
    """Likewise, of the draws."""
    bands: MomentBands
    path_count_bands: MomentBands
    concentration: Tensor
    """[L, k]: ‖w‖²₂ of the rows of P^l, the factor on the covariance. On a regular graph it never
    grows with l. On others it may grow at hubs, whose first row is flatter than the limit of w."""
    path_count_concentration: Tensor
    """[L, k]: ‖π̌‖²₂ / ‖π̌‖²₁."""

    @property
    def exact_holds(self) -> bool:
        """Whether every empirical number is inside the band of the exact formula."""
        return self._all_inside(self.bands)

    @property
    def path_count_holds(self) -> bool:
        """Whether every empirical number is inside the band of the path-count form."""
        return self._all_inside(self.path_count_bands)

    def shares_inside(self) -> dict[str, float]:
        """The share of numbers inside their band, by form, for means and for covariances.

        The width of a mean's band follows from the form's own covariance. A correct mean can
        therefore be outside the band of a form whose covariance is too small.
        """
        forms = {"exact": self.bands, "path_count": self.path_count_bands}
        shares = {}
        for name, bands in forms.items():
            mean = bands.holds_mean(self.empirical)
            covariance = bands.holds_covariance(self.empirical)
            shares[f"{name}_mean"] = mean.double().mean().item()
            shares[f"{name}_covariance"] = covariance.double().mean().item()
        return shares

    def _all_inside(self, bands: MomentBands) -> bool:
        mean, covariance = bands.holds_mean(self.empirical), bands.holds_covariance(self.empirical)
        return bool(mean.all()) and bool(covariance.all())


def check_lemma(
    lemma: str,
    edge_index: Tensor | Neighbors,
    y: Tensor,
    gaussians: ClassGaussians | None = None,
    *,
    layers: int = 8,
    nodes: Tensor | int = 8,
    draws: int = 10_000,
    weights: Sequence[Tensor] | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> LemmaCheck:
    """Draw the features ``draws`` times, run the network, and compare with both formulas.

    The draws pass through the layers one by one, in blocks, with the library's own attention
    weights; the formulas come from rows of P^l.

    Args:
        lemma: "gcn" (Lemma 1) or "oracle" (Lemma 2).
        edge_index: [2, ·] or neighbour lists.
        y: [n] classes, all known.
        gaussians: one per class; by default :meth:`ClassGaussians.example`.
        layers: L.
        nodes: the nodes to examine, or their number: then spread from the smallest to the
            largest degree.
        draws: N.
        weights: W^1 [m, d], then W^2 … W^L [m, m]; by default identities.
        level: probability that *all* numbers are inside if the formula is right.
        seed: of the draws.
    """
    neighbors, y = as_neighbors(edge_index, len(y)).to("cpu"), y.cpu()
    classes = _require_classes(y)
    gaussians = ClassGaussians.example(classes) if gaussians is None else gaussians
    if classes > len(gaussians.means):
        raise UserError(
            f"y has classes up to {classes - 1} but gaussians has {len(gaussians.means)}: "
            "give one Gaussian per class"
        )
    nodes = _spread(neighbors, nodes) if isinstance(nodes, int) else nodes
    matrices = _layer_matrices(weights, layers, gaussians.means.size(1))
    walks = walk_weights(lemma, neighbors, y, nodes, layers)
    products = [matrices[0]]
    for matrix in matrices[1:]:
        products.append(matrix @ products[-1])
    exact = formula_moments(walks.exact, y, gaussians, torch.stack(products))
    path_count = formula_moments(walks.path_count, y, gaussians, torch.stack(products))
    empirical = _drawn_moments(lemma, neighbors, y, gaussians, matrices, nodes, draws, seed)
    return LemmaCheck(
        lemma=lemma,
        nodes=nodes,
        degree=neighbors.degree[nodes],
        draws=draws,
        level=level,
        exact=exact,
        path_count=path_count,
        empirical=empirical,
        bands=moment_bands(exact, draws, level),
        path_count_bands=moment_bands(path_count, draws, level),
        concentration=walks.exact.square().sum(-1),
        path_count_concentration=walks.path_count.square().sum(-1),
    )


def walk_weights(
    lemma: str, edge_index: Tensor | Neighbors, y: Tensor, nodes: Tensor, layers: int
) -> WalkWeights:
    """w of the nodes for l = 1 … L, exact and by path counts; L·k·n numbers each.

    Row v of P^l is row v of P^(l-1) times P. Path counts are normalised at every step, to avoid
    overflow.
    """
    neighbors, y = as_neighbors(edge_index, len(y)).to("cpu"), y.cpu()
    passes = _passes(lemma, neighbors, y)
    steps = (_matrix(neighbors, passes).T, _matrix(neighbors, (passes > 0).double()).T)
    start = np.zeros((len(y), len(nodes)))
    start[nodes.numpy(), np.arange(len(nodes))] = 1
    rows: list[list[Tensor]] = [[], []]
    for step, found in zip(steps, rows, strict=True):
        column = start
        for _ in range(layers):
            column = step @ column
            column = column / column.sum(0)
            found.append(torch.from_numpy(column.T.copy()))
    return WalkWeights(torch.stack(rows[0]), torch.stack(rows[1]))


def formula_moments(
    walk: Tensor, y: Tensor, gaussians: ClassGaussians, products: Tensor
) -> Moments:
    """Σ_c (Σ_{u∈c} w_u) W μ_c and Σ_c (Σ_{u∈c} w_u²) W Σ_c Wᵀ.

    Args:
        walk: w, [L, k, n].
        y: [n].
        gaussians: μ and Σ.
        products: W = W^l ⋯ W^1 of every layer, [L, m, d].
    """
    one_hot = torch.nn.functional.one_hot(y, len(gaussians.means)).double()
    means = torch.einsum("lmd,cd->lcm", products, gaussians.means.double())
    covariances = torch.einsum(
        "lmd,cde,lpe->lcmp", products, gaussians.covariances.double(), products
    )
    return Moments(
        torch.einsum("lkc,lcm->lkm", walk @ one_hot, means),
        torch.einsum("lkc,lcmp->lkmp", walk.square() @ one_hot, covariances),
    )


def _drawn_moments(
    lemma: str,
    neighbors: Neighbors,
    y: Tensor,
    gaussians: ClassGaussians,
    matrices: Sequence[Tensor],
    nodes: Tensor,
    draws: int,
    seed: int,
) -> Moments:
    """Empirical moments, merged from blocks of draws so that no draw is stored."""
    generator = torch.Generator().manual_seed(seed)
    n, step_matrix = len(y), _matrix(neighbors, _passes(lemma, neighbors, y))
    d = gaussians.means.size(1)
    per_block = max(1, BLOCK_BYTES // (8 * d * n))
    seen = 0
    mean = torch.zeros(len(matrices), len(nodes), len(matrices[0]), dtype=torch.float64)
    scatter = torch.zeros(*mean.shape, len(matrices[0]), dtype=torch.float64)
    while seen < draws:
        count = min(per_block, draws - seen)
        h, kept = gaussians.draw(y, count, generator), []
        for matrix in matrices:
            h = torch.from_numpy(step_matrix @ h.reshape(n, -1).numpy()).view(n, count, -1)
            h = h @ matrix.T
            kept.append(h[nodes])
        block = torch.stack(kept)  # [L, k, count, m]
        block_mean = block.mean(2)
        centred = block - block_mean.unsqueeze(2)
        step = block_mean - mean
        seen += count
        scatter += centred.mT @ centred
        scatter += step.unsqueeze(-1) * step.unsqueeze(-2) * (count * (seen - count) / seen)
        mean += step * (count / seen)
    return Moments(mean, scatter / (draws - 1))


def _passes(lemma: str, neighbors: Neighbors, y: Tensor) -> Tensor:
    """P_vu of every edge, [E]: the weights of a layer of the GCN or of the oracle."""
    if lemma not in LEMMAS:
        raise unknown_name("lemma", lemma, LEMMAS)
    form: ScoreForm = Uniform()
    if lemma == "oracle":
        same = y[neighbors.target.long()] == y[neighbors.source.long()]
        form = EdgeScore(same.double().log().unsqueeze(-1))
    return ops.attention_weights(neighbors, form).squeeze(-1).double()


def _matrix(neighbors: Neighbors, values: Tensor) -> sp.csr_matrix:
    """[n, n] with ``values`` [E] at (v, u)."""
    n = neighbors.num_nodes
    parts = (values.numpy(), neighbors.source.numpy(), neighbors.ptr.numpy())
    return sp.csr_matrix(parts, shape=(n, n))


def _layer_matrices(weights: Sequence[Tensor] | None, layers: int, d: int) -> list[Tensor]:
    if layers < 1:
        raise UserError(f"layers is {layers}: expected 1 or more")
    if weights is None:
        return [torch.eye(d, dtype=torch.float64)] * layers
    shapes = [tuple(weight.shape) for weight in weights]
    height = shapes[0][0] if shapes else 0
    if shapes != [(height, d), *[(height, height)] * (layers - 1)]:
        raise UserError(
            f"weights has the shapes {shapes}: expected one [m, {d}] matrix, then {layers - 1} of "
            "shape [m, m], for one m"
        )
    return [weight.double() for weight in weights]


def _require_classes(y: Tensor) -> int:
    if y.dim() != 1 or not len(y) or int(y.min()) < 0:
        raise UserError("y must hold one class per node, numbered from 0, for at least one node")
    return int(y.max()) + 1


def _spread(neighbors: Neighbors, count: int) -> Tensor:
    """``count`` nodes from the smallest to the largest degree, evenly by rank."""
    order = neighbors.degree.argsort(stable=True)
    places = torch.linspace(0, len(order) - 1, min(max(count, 1), len(order)))
    return order[places.round().long().unique()]
