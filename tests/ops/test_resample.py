from __future__ import annotations

import cmath
import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mmspatial.ops import downsample, resample, upsample
from mmspatial.ops.resample import matrix, resample_matrix, resample_reference

Form = Callable[[Tensor, tuple[int, int]], Tensor]
FORMS = pytest.mark.parametrize('form', [resample_matrix, resample_reference])


def dft_sums(old: int, new: int) -> Tensor:
    """Write the definition out: one complex exponential after another, for unit impulses."""
    rows = torch.zeros(new, old, dtype=torch.float64)
    if new > old:
        spectrum = {k: 1.0 for k in range(-old, old + 1) if abs(k) * 2 < old}
        if old % 2 == 0:
            spectrum |= {old // 2: 0.5, -old // 2: 0.5}
    else:
        spectrum = {k: 1.0 for k in range(-old, old + 1) if abs(k) * 2 < new}
    for m, j in itertools.product(range(new), range(old)):
        turns = m / new - j / old
        waves = [w * cmath.exp(2j * cmath.pi * k * turns) for k, w in spectrum.items()]
        assert abs(sum(waves).imag) < 1e-12
        rows[m, j] = sum(waves).real / old
    return rows if new != old else torch.eye(old, dtype=torch.float64)


def by_definition(x: Tensor, size: tuple[int, int]) -> Tensor:
    rows, columns = dft_sums(x.shape[2], size[0]), dft_sums(x.shape[3], size[1])
    return torch.einsum('mh,nw,bchw->bcmn', rows, columns, x.double())


@pytest.mark.smoke
@FORMS
def test_all_parities_and_their_mixes(form: Form) -> None:
    worst = 0.0
    for height, width in [*itertools.product(range(1, 6), repeat=2), (16, 17), (7, 14), (12, 9)]:
        x = torch.randn(2, 3, height, width, dtype=torch.float64)
        sizes = [(2 * height, 2 * width), (4 * height, width), (height + 1, 2 * width)]
        sizes += [(-(-height // 2), -(-width // 2)), (height, 1), (1, 3 * width)]
        for size in sizes:
            worst = max(worst, (form(x, size) - by_definition(x, size)).abs().max().item())
    print(f'largest difference to the definition: {worst:.1e}')
    assert worst <= 2e-14


@FORMS
def test_a_wave_is_the_same_wave_on_another_grid(form: Form) -> None:
    def wave(rows: int, columns: int) -> Tensor:
        y = torch.arange(rows, dtype=torch.float64)[:, None] / rows
        x = torch.arange(columns, dtype=torch.float64) / columns
        return (2 * torch.pi * (2 * y - 3 * x) + 0.4).cos()[None, None]

    for size in ((10, 14), (20, 7), (9, 9), (5, 28), (40, 30)):
        torch.testing.assert_close(form(wave(10, 14), size), wave(*size), rtol=0, atol=1e-13)
    # Three periods do not fit on six columns without aliasing, and two not on four rows.
    for size in ((10, 6), (4, 14)):
        assert form(wave(10, 14), size).abs().max() < 1e-13


@FORMS
def test_upsampling_interpolates_and_downsampling_undoes_it(form: Form) -> None:
    x = torch.randn(1, 2, 6, 5, dtype=torch.float64)
    up = form(x, (12, 10))
    torch.testing.assert_close(up[..., ::2, ::2], x)
    # What an even axis has at its Nyquist frequency does not come back.
    alternating = torch.tensor([1.0, -1.0] * 3, dtype=torch.float64)[:, None]
    nyquist = alternating * (alternating * x).mean(2, keepdim=True)
    torch.testing.assert_close(form(up, (6, 5)), x - nyquist)


def test_factors() -> None:
    x = torch.randn(1, 2, 6, 10, dtype=torch.float64)
    torch.testing.assert_close(upsample(x), by_definition(x, (12, 20)))
    torch.testing.assert_close(upsample(x, 3), by_definition(x, (18, 30)))
    torch.testing.assert_close(downsample(x), by_definition(x, (3, 5)))
    torch.testing.assert_close(downsample(x[..., :8], 2), by_definition(x[..., :8], (3, 4)))
    with pytest.raises(ValueError, match=r'\(6, 10\) cannot be downsampled by 4'):
        downsample(x, 4)


def test_gradients() -> None:
    x = torch.randn(1, 2, 4, 5, dtype=torch.float64, requires_grad=True)
    for impl, size in itertools.product(('auto', 'reference'), ((8, 10), (2, 3), (4, 7))):
        assert torch.autograd.gradcheck(lambda x, i=impl, s=size: resample(x, s, impl=i), x)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize('impl', ['auto', 'reference'])
def test_half_precision(dtype: torch.dtype, impl: str) -> None:
    """Also on sizes that are no powers of two, for which half-precision FFTs do not exist."""
    x = torch.randn(2, 3, 14, 9)
    with torch.autocast('cpu', dtype):
        under_autocast = resample(x, (28, 18), impl=impl)
    low = resample(x.to(dtype), (28, 18), impl=impl)
    assert low.dtype == dtype
    expected = by_definition(x, (28, 18))
    bound = 4 * torch.finfo(dtype).eps * expected.abs().max()
    assert (low - expected).abs().max() <= bound
    assert (under_autocast - expected).abs().max() <= bound


def test_single_precision_on_large_maps() -> None:
    x = torch.randn(1, 1, 224, 300)
    for size in ((448, 600), (56, 75)):
        expected = resample_reference(x.double(), size)
        error = (resample(x, size) - expected).abs().max() / expected.abs().max()
        assert error <= 2e-6


def test_memory_format_changes_nothing() -> None:
    x = torch.randn(2, 3, 6, 7, dtype=torch.float64)
    expected = by_definition(x, (12, 7))
    last = resample(x.contiguous(memory_format=torch.channels_last), (12, 7))
    for y in (last, resample(x, (12, 7)), resample(x.mT.contiguous().mT, (12, 7))):
        torch.testing.assert_close(y, expected)
    assert last.is_contiguous(memory_format=torch.channels_last)


def test_long_axes_go_through_the_fft(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1, 2, 12, 5, dtype=torch.float64)
    monkeypatch.setattr(matrix, 'MAX_LENGTH', 10)
    built = []
    real = matrix.axis_matrix
    monkeypatch.setattr(matrix, 'axis_matrix', lambda *a: built.append(a[:2]) or real(*a))
    torch.testing.assert_close(resample(x, (24, 10)), by_definition(x, (24, 10)))
    assert built == [(5, 10)]
    torch.testing.assert_close(resample(x, (6, 5)), by_definition(x, (6, 5)))
    assert built == [(5, 10)]


class Up(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return downsample(torch.nn.functional.gelu(upsample(x)), 4)


def test_compiles_and_exports_without_fft(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1, 2, 6, 10)
    expected = Up()(x)
    compiled = torch.compile(Up(), fullgraph=True, backend='aot_eager')
    torch.testing.assert_close(compiled(x), expected)
    monkeypatch.setattr(matrix, 'MAX_LENGTH', 1)
    program = torch.export.export(Up(), (x,))
    assert 'fft' not in str(program.graph)
    torch.testing.assert_close(program.module()(x), expected, rtol=0, atol=1e-6)


def test_says_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r'must be \(B, C, H, W\), got \(2, 3\)'):
        resample(torch.zeros(2, 3), (4, 4))
    with pytest.raises(ValueError, match=r'a map of \(2, 3\) to \(0, 4\)'):
        resample(torch.zeros(1, 1, 2, 3), (0, 4))
    with pytest.raises(NotImplementedError, match='triton'):
        resample(torch.zeros(1, 1, 2, 3), (4, 6), impl='triton')
