from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mmspatial.ops import alias_free_gelu, explain
from mmspatial.ops.resample import alias_free_gelu_phases, phases, resample_reference

SIZES = [*itertools.product(range(1, 7), repeat=2), (16, 17), (7, 14), (12, 9), (20, 36)]


def by_definition(x: Tensor, reduction: int) -> Tensor:
    height, width = x.shape[2:]
    fine = F.gelu(resample_reference(x, (2 * height, 2 * width)))
    return resample_reference(fine, (height // reduction, width // reduction))


@pytest.fixture(params=['products', 'fft', 'both', 'slices'])
def _path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send small maps through what large ones take."""
    if request.param == 'slices':
        monkeypatch.setattr(phases, '_SLICE_ENTRIES', 50)
    else:
        shortest = {'products': 99, 'fft': 0, 'both': 6}[request.param]
        monkeypatch.setattr(phases, '_MIN_FFT', shortest)


@pytest.mark.usefixtures('_path')
def test_phases_of_all_parities() -> None:
    worst = 0.0
    for size, reduction in itertools.product(SIZES, (1, 2)):
        if any(n % reduction for n in size):
            continue
        x = torch.randn(2, 3, *size, dtype=torch.float64)
        y = alias_free_gelu_phases(x, reduction)
        worst = max(worst, (y - by_definition(x, reduction)).abs().max().item())
    print(f'largest difference to the definition: {worst:.1e}')
    assert worst <= 2e-14


@pytest.mark.usefixtures('_path')
@pytest.mark.parametrize('reduction', [1, 2])
def test_gradients_of_phases(reduction: int) -> None:
    for size in ((4, 6), (2, 8), *([(5, 4)] if reduction == 1 else [])):
        x = torch.randn(2, 3, *size, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x: alias_free_gelu_phases(x, reduction), x)


@pytest.mark.parametrize(
    ('dtype', 'bound'),
    [(torch.float32, 1e-6), (torch.bfloat16, 0.03), (torch.float16, 4e-3)],
    ids=str,
)
def test_precision_on_large_maps(dtype: torch.dtype, bound: float) -> None:
    for (height, width), reduction in (((256, 300), 2), ((130, 64), 1)):
        x = torch.randn(1, 5, height, width, dtype=torch.float64)
        expected = by_definition(x, reduction)
        with torch.autocast('cpu', torch.bfloat16):
            y = alias_free_gelu(x.to(dtype), reduction)
        assert y.dtype == dtype
        error = ((y - expected).abs().max() / expected.abs().max()).item()
        print(f'{dtype}, {height}x{width}: relative error {error:.1e}')
        assert error <= bound


def test_memory_format_changes_nothing_and_the_map_is_left_alone() -> None:
    x = torch.randn(2, 3, 6, 8)
    expected = by_definition(x, 2)
    for given in (x.clone(), x.contiguous(memory_format=torch.channels_last), x.mT.contiguous().mT):
        y = alias_free_gelu_phases(given, 2)
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-6)
        assert y.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(given, x)


def test_no_images() -> None:
    x = torch.zeros(0, 512, 64, 64, requires_grad=True)
    y = alias_free_gelu(x, 2)
    assert y.shape == (0, 512, 32, 32)
    assert torch.autograd.grad(y.sum(), x)[0].shape == x.shape
    assert alias_free_gelu(x.detach()).shape == x.shape


def test_large_maps_take_phases() -> None:
    def chosen(x: Tensor, **kwargs: str) -> str:
        with explain() as decisions:
            alias_free_gelu(x, **kwargs)
        return decisions[0].chosen

    assert chosen(torch.zeros(1, 2, 64, 64)) == 'phases'
    assert chosen(torch.zeros(1, 2, 14, 14)) == 'matrix'
    assert chosen(torch.zeros(1, 2, 64, 64, requires_grad=True)) == 'matrix'
    assert chosen(torch.zeros(1, 512, 64, 64, requires_grad=True)) == 'phases'
    assert chosen(torch.zeros(1, 2, 64, 64), impl='reference') == 'reference'


class Act(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return alias_free_gelu(x, 2)


def test_compiles_to_one_operator_without_gradients() -> None:
    x = torch.randn(1, 2, 64, 36)
    graphs = []

    def note(graph: torch.fx.GraphModule, _: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(str(graph.graph))
        return graph

    for dynamic in (False, True):
        compiled = torch.compile(Act(), fullgraph=True, dynamic=dynamic, backend=note)
        assert torch.equal(compiled(x), Act()(x))
    assert ['mmspatial.alias_free_gelu' in graph for graph in graphs] == [True, True]
    torch.library.opcheck(torch.ops.mmspatial.alias_free_gelu.default, (x, 2))
    torch.library.opcheck(torch.ops.mmspatial.alias_free_gelu.default, (x[:, ::2, 1:35], 2))


def test_compiled_training_and_export_hold_standard_operators() -> None:
    x = torch.randn(1, 512, 64, 36, requires_grad=True)
    compiled = torch.compile(Act(), fullgraph=True, backend='aot_eager')
    grads = []
    for act in (Act(), compiled):
        (grad,) = torch.autograd.grad(act(x).square().sum(), x)
        grads.append(grad)
    torch.testing.assert_close(*grads, rtol=0, atol=1e-5)
    program = torch.export.export(Act(), (x.detach(),))
    assert 'mmspatial' not in str(program.graph)
    expected = by_definition(x.detach(), 2)
    torch.testing.assert_close(program.module()(x.detach()), expected, rtol=0, atol=2e-6)


def test_says_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r'must be \(B, C, H, W\), got \(2, 3\)'):
        alias_free_gelu(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r'a map of \(6, 9\) cannot be reduced by 2'):
        alias_free_gelu(torch.zeros(1, 2, 6, 9), 2)
    with pytest.raises(NotImplementedError, match=r'alias_free_gelu has no such.*triton'):
        alias_free_gelu(torch.zeros(1, 1, 2, 3), impl='triton')
