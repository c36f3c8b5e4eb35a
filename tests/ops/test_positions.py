from __future__ import annotations

import math

import pytest
import torch

from mmspatial.ops import _tables, cached_table
from mmspatial.ops.positions import distance, grid_positions, pairwise_distance

CPU = torch.device('cpu')


def test_grid_positions_are_row_major_with_the_row_first() -> None:
    assert grid_positions(2, 3, CPU).tolist() == [[[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]]


@pytest.mark.parametrize('grid', [(1, 1), (1, 4), (3, 1), (3, 4)])
@pytest.mark.parametrize('metric', ['manhattan', 'euclidean'])
def test_distances_on_a_grid(grid: tuple[int, int], metric: str) -> None:
    dist = distance(grid, metric, CPU, torch.float64)
    tokens = [(r, c) for r in range(grid[0]) for c in range(grid[1])]
    assert dist.shape == (1, len(tokens), len(tokens))
    for i, (y0, x0) in enumerate(tokens):
        for j, (y1, x1) in enumerate(tokens):
            dy, dx = abs(y0 - y1), abs(x0 - x1)
            expected = dy + dx if metric == 'manhattan' else math.sqrt(dy * dy + dx * dx)
            assert dist[0, i, j].item() == pytest.approx(expected, rel=1e-15)


def test_coordinates_have_distances_within_their_group() -> None:
    coordinates = torch.tensor([[[0, 0], [3, 4]], [[1, 1], [1, 7]]])
    assert distance(coordinates, 'euclidean', CPU).tolist() == [[[0, 5], [5, 0]], [[0, 6], [6, 0]]]
    assert distance(coordinates, 'manhattan', CPU).tolist() == [[[0, 7], [7, 0]], [[0, 6], [6, 0]]]


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_distance_is_exact_in_the_dtype_asked_for(dtype: torch.dtype) -> None:
    root = torch.tensor(2.0, dtype=dtype).sqrt()
    for positions in ((2, 2), torch.tensor([[[0.0, 0.0], [0, 1], [1, 0], [1, 1]]])):
        dist = distance(positions, 'euclidean', CPU, dtype)
        assert dist.dtype == dtype
        assert dist[0, 0, 3] == root


def test_unknown_metric_is_named() -> None:
    with pytest.raises(ValueError, match=r"unknown metric 'chess'.*manhattan, euclidean"):
        pairwise_distance(torch.zeros(1, 2, 2), 'chess')


def test_cached_table_builds_once_per_size() -> None:
    built = []

    @cached_table
    def table(n: int) -> torch.Tensor:
        built.append(n)
        return torch.arange(n)

    assert table(3) is table(3)
    table(4)
    assert built == [3, 4]
    for n in range(5, 80):
        table(n)
    table(3)
    assert built.count(3) == 2, 'the cache must be bounded'


def test_cached_table_made_in_inference_mode_serves_training() -> None:
    @cached_table
    def table(n: int) -> torch.Tensor:
        return torch.arange(n, dtype=torch.float32)

    with torch.inference_mode():
        first = table(3)
    x = torch.ones(3, requires_grad=True)
    (x * table(3)).sum().backward()
    assert table(3) is first
    assert x.grad.tolist() == [0, 1, 2]


def test_cached_table_keeps_nothing_of_a_captured_graph() -> None:
    @cached_table
    def table(n: int, device: torch.device) -> torch.Tensor:
        return torch.arange(n, device=device, dtype=torch.float32)

    compiled = torch.compile(lambda x: x + table(3, x.device), fullgraph=True, backend='aot_eager')
    assert compiled(torch.ones(3)).tolist() == [1, 2, 3]
    assert type(table(3, CPU)) is torch.Tensor
    assert table(3, CPU).tolist() == [0, 1, 2]


def test_distances_follow_a_tensor_that_is_written_to() -> None:
    positions = torch.tensor([[[0.0, 0.0], [0.0, 3.0]]])
    first = distance(positions, 'manhattan', CPU)
    assert distance(positions, 'manhattan', CPU) is first
    positions[0, 1, 1] = 5.0
    assert distance(positions, 'manhattan', CPU)[0, 0, 1] == 5
    assert first[0, 0, 1] == 3


def test_distances_of_learned_and_of_inference_positions() -> None:
    learned = torch.tensor([[[0.0, 0.0], [0.0, 3.0]]], requires_grad=True)
    distance(learned, 'manhattan', CPU).sum().backward()
    assert learned.grad is not None
    with torch.inference_mode():
        assert distance(torch.zeros(1, 2, 2), 'euclidean', CPU).sum() == 0


def test_cache_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tables, '_MAX_BYTES_EACH', 400)
    monkeypatch.setattr(_tables, '_MAX_BYTES', 1000)

    @cached_table
    def table(n: int) -> torch.Tensor:
        return torch.zeros(n)

    assert table(101) is not table(101)
    first = table(100)
    assert table(100) is first
    table(90)
    table(80)
    assert table(100) is not first
