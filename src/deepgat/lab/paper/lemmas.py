"""A Monte Carlo check of the paper's two lemmas.

Features x_u ~ N(μ_c, Σ_c) for a node u of class c, independent; a linear network (σ = identity,
W = identity)

    h^l = P h^(l-1),  h^0 = X,   so   h^l_v = Σ_u (P^l)_vu x_u.

- Lemma 1, ``"gcn"``: P_vu = 1/|N_v|.
- Lemma 2, ``"oracle"``: P_vu = o(v, u) / Σ_u o(v, u): no messages between classes.

h^l_v is Gaussian, and with w = row v of P^l, which sums to 1, *exactly*

    mean = Σ_c (Σ_{u ∈ c} w_u) μ_c,    covariance = Σ_c (Σ_{u ∈ c} w_u²) Σ_c.

The paper expresses w by path counts: π̌_u is the number of paths of length l from v to u (for the
oracle: within the class), and w = π̌ / ‖π̌‖₁, so the covariance shrinks by ‖π̌‖²₂ / ‖π̌‖²₁ = ‖w‖²₂.
This equals the row of P^l only if all nodes have the same degree (for the oracle: within the
class). Else a path through a node of small degree weighs more than one through a node of large
degree, and the path-count form is wrong. The mean of Lemma 2 is μ_c in either form.
Shapes: n nodes, E edges, d features, C classes, L layers, k examined nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from deepgat import ops
from deepgat.data import csbm_graph
from deepgat.ops import EdgeScore, Neighbors, ScoreForm, Uniform

LEMMAS = {"gcn": "Lemma 1 (GCN)", "oracle": "Lemma 2 (oracle)"}
DRAWS, QUICK_DRAWS = 10_000, 2_000
LEVEL = 0.95
BLOCK_BYTES = 8 * 2**20
"""Size of the features drawn at once, small enough for the processor's cache."""


class Moments(NamedTuple):
    """Means [..., d] and covariances [..., d, d]."""

    mean: Tensor
    covariance: Tensor


class MomentBands(NamedTuple):
    """Bounds within which all empirical moments lie with the probability :data:`LEVEL`."""

    lower: Moments
    upper: Moments

    def inside(self, found: Moments) -> tuple[Tensor, Tensor]:
        """Which means [..., d] and covariances [..., d, d] are inside."""
        mean, covariance = (
            (value >= low - 1e-9) & (value <= high + 1e-9)
            for value, low, high in zip(found, self.lower, self.upper, strict=True)
        )
        return mean, covariance


@dataclass(frozen=True, eq=False)
class LemmaCheck:
    """A lemma's formulas and the empirical moments, for every layer l = 1 … L and examined node.

    ``bands`` and ``path_count_bands`` contain the empirical moments if that form is right.
    """

    degree: Tensor
    """[k]: |N_v|, including v itself."""
    draws: int
    level: float
    exact: Moments
    """mean [L, k, d], covariance [L, k, d, d] of the formula with rows of P^l."""
    path_count: Moments
    """Likewise, of the path-count form."""
    empirical: Moments
    """Likewise, of the draws."""
    bands: MomentBands
    path_count_bands: MomentBands

    @property
    def exact_holds(self) -> bool:
        """Whether every empirical number is inside the band of the exact formula."""
        return all(bool(part.all()) for part in self.bands.inside(self.empirical))

    @property
    def path_count_holds(self) -> bool:
        """Whether every empirical number is inside the band of the path-count form."""
        return all(bool(part.all()) for part in self.path_count_bands.inside(self.empirical))

    def shares_inside(self) -> dict[str, float]:
        """The share of numbers inside their band, by form, for means and for covariances.

        The width of a mean's band follows from the form's own covariance. A correct mean can
        therefore be outside the band of a form whose covariance is too small.
        """
        shares = {}
        for name, bands in (("exact", self.bands), ("path_count", self.path_count_bands)):
            mean, covariance = bands.inside(self.empirical)
            shares[f"{name}_mean"] = mean.double().mean().item()
            shares[f"{name}_covariance"] = covariance.double().mean().item()
        return shares


def check_lemma(
    lemma: str, edge_index: Tensor, y: Tensor, layers: int = 8, nodes: int = 8, draws: int = 10_000
) -> LemmaCheck:
    """Draw the features ``draws`` times, run the network, and compare with both formulas.

    Args:
        lemma: "gcn" (Lemma 1) or "oracle" (Lemma 2).
        edge_index: [2, e].
        y: [n], two classes.
        layers: L.
        nodes: how many nodes to examine, spread from the smallest to the largest degree.
        draws: N.
    """
    neighbors = Neighbors.from_edge_index(edge_index, len(y))
    order = neighbors.degree.argsort(stable=True)
    places = torch.linspace(0, len(order) - 1, min(nodes, len(order)))
    examined = order[places.round().long().unique()]
    step = step_matrix(lemma, neighbors, y)
    exact = formula_moments(walk_weights(step, examined, layers), y)
    path_count = formula_moments(walk_weights(step.sign(), examined, layers), y)
    return LemmaCheck(
        degree=neighbors.degree[examined],
        draws=draws,
        level=LEVEL,
        exact=exact,
        path_count=path_count,
        empirical=_drawn_moments(step, y, examined, layers, draws),
        bands=moment_bands(exact, draws),
        path_count_bands=moment_bands(path_count, draws),
    )


def step_matrix(lemma: str, neighbors: Neighbors, y: Tensor) -> sp.csr_matrix:
    """P [n, n]: the library's attention weights of a GCN layer or of the oracle."""
    form: ScoreForm = Uniform()
    if lemma == "oracle":
        same = y[neighbors.target.long()] == y[neighbors.source.long()]
        form = EdgeScore(same.double().log().unsqueeze(-1))
    weight = ops.attention_weights(neighbors, form).squeeze(-1).double()
    parts = (weight.numpy(), neighbors.source.numpy(), neighbors.ptr.numpy())
    return sp.csr_matrix(parts, shape=(neighbors.num_nodes, neighbors.num_nodes))


def walk_weights(step: sp.csr_matrix, nodes: Tensor, layers: int) -> Tensor:
    """Rows of step^l, divided by their sums, of the nodes for l = 1 … L: [L, k, n].

    Row v of step^l is row v of step^(l-1) times the step. Rows are normalised at every layer, to
    avoid overflow.
    """
    column = np.zeros((step.shape[0], len(nodes)))
    column[nodes.numpy(), np.arange(len(nodes))] = 1
    rows = []
    for _ in range(layers):
        column = step.T @ column
        column = column / column.sum(0)
        rows.append(torch.from_numpy(column.T.copy()))
    return torch.stack(rows)


def class_gaussians() -> Moments:
    """Two classes in the plane: opposite means of length 2, and correlated features."""
    root = torch.tensor([[[1.0, 0.0], [0.5, 1.0]], [[1.0, 0.0], [-0.5, 1.0]]]).double()
    scale = torch.tensor([1.0, 1.5]).double().view(2, 1, 1)
    return Moments(torch.tensor([[2.0, 0.0], [-2.0, 0.0]]).double(), scale * root @ root.mT)


def formula_moments(walk: Tensor, y: Tensor) -> Moments:
    """Σ_c (Σ_{u∈c} w_u) μ_c and Σ_c (Σ_{u∈c} w_u²) Σ_c of weights w [L, k, n]."""
    one_hot = torch.nn.functional.one_hot(y, 2).double()
    means, covariances = class_gaussians()
    return Moments(
        torch.einsum("lkc,cd->lkd", walk @ one_hot, means),
        torch.einsum("lkc,cde->lkde", walk.square() @ one_hot, covariances),
    )


def draw_features(y: Tensor, draws: int) -> Tensor:
    """The features of all nodes, [n, draws, d] in double precision."""
    generator = torch.Generator().manual_seed(0)
    means, covariances = class_gaussians()
    values, vectors = torch.linalg.eigh(covariances)
    roots = vectors * values.sqrt().unsqueeze(-2)  # Σ_c = R_c R_cᵀ
    block = BLOCK_BYTES // (8 * 2 * len(y))
    noise = [
        torch.randn(len(y), min(block, draws - begin), 2, generator=generator, dtype=torch.float64)
        for begin in range(0, draws, block)
    ]
    return means[y].unsqueeze(1) + torch.cat(noise, 1) @ roots[y].mT


def _drawn_moments(
    step: sp.csr_matrix, y: Tensor, nodes: Tensor, layers: int, draws: int
) -> Moments:
    h, means, covariances = draw_features(y, draws), [], []
    for _ in range(layers):
        h = torch.from_numpy(step @ h.reshape(len(y), -1).numpy()).view(len(y), draws, -1)
        means.append(h[nodes].mean(1))
        covariances.append(torch.stack([own.T.cov() for own in h[nodes]]))
    return Moments(torch.stack(means), torch.stack(covariances))


def moment_bands(moments: Moments, draws: int) -> MomentBands:
    """Simultaneous bands around the true ``moments`` for the empirical ones of ``draws`` draws.

    For N draws of N(m, C), with ν = N − 1, the unbiased empirical covariance S and the
    correlation ρ:

    - mean_i ~ N(m_i, C_ii / N);
    - ν S_ij / sqrt(C_ii C_jj) ~ a X − b Y with a = (1 + ρ)/2, b = (1 − ρ)/2, and X and Y
      independent χ²_ν. Its cumulants are κ_r = 2^(r−1) (r − 1)! ν (a^r + (−b)^r), and the
      Cornish–Fisher expansion turns them into quantiles, with an error of order ν^(-3/2).

    The tail of each number is the total divided by the count of numbers (Bonferroni), which is
    valid under any dependence.
    """
    mean, covariance = moments
    numbers = mean.numel() * (1 + (mean.size(-1) + 1) / 2)
    z = -torch.special.ndtri(torch.tensor((1 - LEVEL) / 2 / numbers, dtype=torch.float64))
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    reach = z * (variance / draws).sqrt()
    scale = (variance.unsqueeze(-1) * variance.unsqueeze(-2)).sqrt()
    a, b = (1 + covariance / scale) / 2, (1 - covariance / scale) / 2
    freedom = draws - 1
    spread = (2 * freedom * (a**2 + b**2)).sqrt()
    skewness = 8 * freedom * (a**3 - b**3) / spread**3
    excess = 48 * freedom * (a**4 + b**4) / spread**4
    shift = (z**2 - 1) / 6 * skewness
    widening = (z**3 - 3 * z) / 24 * excess - (2 * z**3 - 5 * z) / 36 * skewness**2
    lower, upper = (
        covariance + scale * spread / freedom * (shift + sign * (z + widening)) for sign in (-1, 1)
    )
    return MomentBands(Moments(mean - reach, lower), Moments(mean + reach, upper))


class Checked(NamedTuple):
    """One lemma on one graph."""

    lemma: str
    graph: str
    """A description."""
    check: LemmaCheck


def regular_graph() -> Data:
    """Two classes of 50 nodes; each node has 4 neighbours in its class and 2 in the other.

    A class is a ring in random order, whose nodes are joined to the nearest two on either side.
    """
    random = np.random.default_rng(0)
    rings = random.permutation(100).reshape(2, 50)
    other = random.permutation(rings[1])
    pairs = [(ring, np.roll(ring, -step)) for ring in rings for step in (1, 2)]
    pairs += [(rings[0], np.roll(other, -step)) for step in (0, 1)]
    y = np.empty(100, dtype=np.int64)
    y[rings] = [[0], [1]]
    edge_index = to_undirected(torch.from_numpy(np.hstack(pairs)))
    return Data(edge_index=edge_index, y=torch.from_numpy(y), num_nodes=100)


def check_lemmas(quick: bool = False) -> Iterator[Checked]:
    """Both lemmas on a graph where all nodes look alike and on one with hubs."""
    hubs = csbm_graph(200, 2, 2, degree=6, hubs=4, hub_degree=60)
    draws = QUICK_DRAWS if quick else DRAWS
    for name, graph in {"regular, n = 100": regular_graph(), "hubs, n = 200": hubs}.items():
        for lemma, title in LEMMAS.items():
            check = check_lemma(lemma, graph.edge_index, graph.y, draws=draws)
            yield Checked(title, name, check)
