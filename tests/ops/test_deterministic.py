"""Dense maps: torch's numbers, and the same bits for any number of threads."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from deepgat.ops import identity_map, layer_norm, linear, residual_map

SIZES = [(0, 3, 2), (1, 1, 1), (63, 5, 4), (130, 64, 64), (5000, 64, 40)]


def leaves(n: int, d: int, m: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = ((n, d), (m, d), (m,))
    return [torch.randn(*shape, dtype=dtype, requires_grad=True) for shape in shapes]


def assert_same(mine: Tensor, theirs: Tensor, inputs: list[Tensor]) -> None:
    torch.testing.assert_close(mine, theirs)
    upstream = torch.randn_like(mine)
    for a, b in zip(
        torch.autograd.grad(mine, inputs, upstream),
        torch.autograd.grad(theirs, inputs, upstream),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("n", "d", "m"), SIZES)
def test_what_torch_computes(n, d, m):
    x, weight, bias = leaves(n, d, m)
    assert_same(linear(x, weight, bias), F.linear(x, weight, bias), [x, weight, bias])
    gamma, beta = (torch.randn(d, dtype=torch.double, requires_grad=True) for _ in range(2))
    expected = F.layer_norm(x, (d,), gamma, beta, 1e-5)
    assert_same(layer_norm(x, gamma, beta, 1e-5), expected, [x, gamma, beta])
    square = torch.randn(d, d, dtype=torch.double, requires_grad=True)
    assert_same(identity_map(x, square, 0.3), 0.7 * x + 0.3 * x @ square, [x, square])


@pytest.mark.parametrize(("n", "d"), [(0, 3), (1, 1), (63, 5), (130, 64), (5000, 40)])
@pytest.mark.parametrize("beta", [0.0, 0.3, 0.8])
def test_residual_map(n, d, beta):
    """σ(((1 − α) x + α h⁰) ((1 − β) I + β W)), and the same bits from its parts."""
    torch.manual_seed(0)
    x, initial = (torch.randn(n, d, dtype=torch.double, requires_grad=True) for _ in range(2))
    weight = torch.randn(d, d, dtype=torch.double, requires_grad=True)
    inputs = [x, initial, weight]
    mapping = (1 - beta) * torch.eye(d, dtype=torch.double) + beta * weight
    mine = residual_map(x, initial, weight, 0.2, beta)
    assert_same(mine, F.relu((0.8 * x + 0.2 * initial) @ mapping), inputs)
    with torch.no_grad():
        assert torch.equal(residual_map(x, initial, weight, 0.2, beta), mine)
    parts = F.relu(identity_map(torch.lerp(x, initial, 0.2), weight, beta))
    upstream = torch.randn_like(mine)
    assert torch.equal(mine, parts)
    found, expected = (
        torch.autograd.grad(out, inputs, upstream)
        for out in (residual_map(x, initial, weight, 0.2, beta), parts)
    )
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize(("n", "d", "m"), SIZES[2:])
def test_the_number_of_threads_changes_no_bit(n, d, m):
    x, weight, bias = leaves(n, d, m, torch.float32)
    gamma, beta = (torch.randn(m, requires_grad=True) for _ in range(2))
    inputs = [x, weight, bias, gamma, beta]

    def run() -> list[Tensor]:
        out = layer_norm(linear(x, weight, bias), gamma, beta, 1e-5)
        return [out, *torch.autograd.grad(out.square().sum(), inputs)]

    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(run())
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))
