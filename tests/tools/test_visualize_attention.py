"""`tools/visualize_attention.py`: its maps against autograd, its pictures, its messages."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import TOOLS, run_tool, write_config
from torch import Tensor, nn

from mmspatial import build_backbone
from mmspatial.apis.attention_maps import Layer, find_layers, recorded
from mmspatial.apis.errors import UserError
from mmspatial.apis.images import read_image, write_picture
from mmspatial.apis.visualize_attention import choose_block

SMALL = dict(embed_dims=8, depths=2, num_heads=2)
PLAIN = dict(embed_dims=16, depth=2, num_heads=2, patch_size=8, img_size=40)
# Sides of 36 x 44 pixels make grids that fit no group, no window and no patch.
CASES = {
    'evt-groups': ('EVT', dict(arch=dict(SMALL, group_sizes=(7, 7, 7, None))), '0.0'),
    'evt-dilated': ('EVT', dict(arch=dict(SMALL, group_sizes=(7, 7, 7, None))), '0.1'),
    'rmt-rows': ('RMT', dict(arch=SMALL), '1.0'),
    'rmt-full': ('RMT', dict(arch=SMALL), '2.1'),
    'rmt-post': ('RMT', dict(arch=SMALL, decay_mode='post'), '0.1'),
    'sdt-rows': ('SDT', dict(arch=SMALL), '0.1'),
    'sdt-plain': ('SDT', dict(arch=PLAIN), '1'),
    'vit': ('ViT', dict(arch=PLAIN), '1'),
    'locatvit': ('LocAtViT', dict(arch=dict(PLAIN, num_registers=2)), '1'),
    'locatvit-rotary': ('LocAtViT', dict(arch=dict(PLAIN, pos_embed='rotary')), '0'),
    'locatswin': ('LocAtSwin', dict(out_indices=(0,), arch=dict(
        embed_dims=8, depths=(2,), num_heads=(2,), window_size=4, img_size=36)), '0.1'),
}  # fmt: skip
# Where there is more than the grid: prefix tokens, or a window with padding.
OUTSIDE = ('sdt-plain', 'vit', 'locatvit', 'locatvit-rotary', 'locatswin')
QUERY, HEAD = (2, 1), 1


def _case(name: str) -> tuple[nn.Module, Layer]:
    kind, options, block = CASES[name]
    model = build_backbone(kind, **options).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model, find_layers(model)[block][1]


def _gradient(model: nn.Module, layer: Layer, x: Tensor) -> Tensor:
    """Return what a change of each value adds to the query's output, ``(L,)`` or ``(G, n)``.

    Queries and keys are held, and what follows the weights is taken away.
    """
    values: list[Tensor] = []
    results: list[Tensor] = []

    def hold(_: nn.Module, __: object, qkv: Tensor) -> Tensor:
        q, k, v = qkv.detach().chunk(3, -1)
        values.append(v.requires_grad_())
        return torch.cat((q, k, v), -1)

    layer.proj, layer.lepe = nn.Identity(), None
    layer.qkv.register_forward_hook(hold)
    layer.register_forward_hook(lambda *call: results.append(call[-1]))
    model(x)
    ((out,), (v,)) = results, values
    channel = HEAD * v.shape[-1] // 2
    rows, columns = _grid(model, layer, x)
    query = out.shape[1] - rows * columns + QUERY[0] * columns + QUERY[1]
    (gradient,) = torch.autograd.grad(out[0, query, channel], v)
    return gradient[0, ..., channel]


def _grid(model: nn.Module, layer: Layer, x: Tensor) -> tuple[int, int]:
    ((stage, _),) = [found for found in find_layers(model).values() if found[1] is layer]
    return tuple(-(-side // model.stage_strides[stage]) for side in x.shape[2:])


def _no_prior(prior: nn.Module) -> None:
    """Make a prior add nothing."""
    if hasattr(prior, 'alpha'):
        nn.init.zeros_(prior.alpha)
    elif hasattr(prior, 'to_alpha'):
        nn.init.zeros_(prior.to_alpha.weight)
        nn.init.constant_(prior.to_alpha.bias, -1e4)
    else:
        prior.decay_init = 1e4


@pytest.mark.parametrize('name', CASES)
def test_maps_are_the_gradient_of_the_output(name: str) -> None:
    model, layer = _case(name)
    x = torch.randn(1, 3, 36, 44)
    with recorded(layer) as recording:
        model(x)
    maps = recording.maps(QUERY, HEAD)
    rows, columns = recording.grid
    assert recording.grid == _grid(model, layer, x)
    for found, change in ((maps.attention, lambda _: None), (maps.plain, _no_prior)):
        change(layer.prior)
        gradient = _gradient(model, layer, x)
        if name == 'locatswin':
            gradient = _unshifted(gradient, layer, rows, columns)
        else:
            gradient = gradient[-rows * columns :].view(rows, columns)
        torch.testing.assert_close(found, gradient, rtol=1e-4, atol=1e-6)
        assert found.std() > 1e-3 * found.mean()


def _unshifted(gradient: Tensor, layer: Layer, rows: int, columns: int) -> Tensor:
    """Bring ``(G, n)`` of windows of a shifted grid to ``(rows, columns)``, token by token."""
    size, shift = layer.window, layer.shift
    across = -(-columns // size[1])
    found = torch.empty(rows, columns)
    for row in range(rows):
        for column in range(columns):
            y, x = (row - shift[0]) % rows, (column - shift[1]) % columns
            window = y // size[0] * across + x // size[1]
            found[row, column] = gradient[window, y % size[0] * size[1] + x % size[1]]
    return found


@pytest.mark.parametrize('name', CASES)
def test_attention_sums_to_one(name: str) -> None:
    model, layer = _case(name)
    with recorded(layer) as recording:
        model(torch.randn(1, 3, 36, 44))
    maps = recording.maps(QUERY, HEAD)
    if name != 'rmt-post':
        assert float(maps.attention.sum()) + maps.outside == pytest.approx(1, abs=1e-5)
    assert (maps.outside > 1e-3) == (name in OUTSIDE)
    assert maps.seen[QUERY]
    assert not maps.attention[~maps.seen].any()
    assert not maps.prior[~maps.seen].any()


def _manhattan(dy: Tensor, dx: Tensor) -> Tensor:
    return dy.abs() + dx.abs()


@pytest.mark.parametrize(
    ('name', 'metric'),
    [('rmt-rows', _manhattan), ('rmt-full', _manhattan), ('evt-dilated', torch.hypot)],
)
def test_prior_is_the_decay(name: str, metric: Callable[[Tensor, Tensor], Tensor]) -> None:
    model, layer = _case(name)
    with recorded(layer) as recording:
        model(torch.randn(1, 3, 36, 44))
    maps = recording.maps(QUERY, HEAD)
    rows, columns = recording.grid
    dy, dx = torch.arange(rows)[:, None] - QUERY[0], torch.arange(columns)[None] - QUERY[1]
    rate = math.log(1 - 2 ** -(2 + layer.prior.decay_range * HEAD / 2))
    expected = (rate * metric(dy.float(), dx.float())).exp()
    torch.testing.assert_close(maps.prior, expected * maps.seen)
    if name != 'evt-dilated':
        assert maps.seen.all()
        return
    total = rows * columns
    groups = -(-total // 7)
    index = torch.arange(total).view(rows, columns)
    assert torch.equal(maps.seen, index % groups == index[QUERY] % groups)


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a tiny config and a grey image that it resizes to 64 x 64 pixels."""
    folder = tmp_path_factory.mktemp('attention')
    write_config(folder, 'seg')
    write_picture(folder / 'grey.png', np.full((256, 512, 3), 128, np.uint8))
    return folder


def test_page_and_panels(folder: Path) -> None:
    words = ('--point', 300, 200, '--block', '0.0', '--head', 0, '--out-dir', folder / 'out')
    run_tool('visualize_attention', folder / 'tiny_seg.py', 'none', folder / 'grey.png', *words)
    panels = {file.name: read_image(file) for file in (folder / 'out/grey_block0.0').iterdir()}
    assert sorted(panels) == [
        'attention_without_prior_x300_y200_head0.png',
        'attention_x300_y200_head0.png',
        'query_x300_y200_head0.png',
        'spatial_prior_x300_y200_head0.png',
    ]
    # The long side shrinks to 480.
    assert {panel.shape for panel in panels.values()} == {(240, 480, 3)}
    page = read_image(folder / 'out/grey_block0.0.png')
    assert page.shape[1] > 4 * 480
    assert page.shape[0] > 240
    # Of the 16 x 16 tokens, 49 in the sequence are a group: the fifth has row 12, column 9.
    prior = panels['spatial_prior_x300_y200_head0.png'].reshape(16, 15, 16, 30, 3)
    faint = (prior == prior[0, 0, 0, 0]).all(-1).mean((1, 3)) > 0.5
    index = np.arange(256).reshape(16, 16)
    np.testing.assert_array_equal(~faint, index // 49 == 201 // 49)
    # The nearer, the brighter: along the row, beyond the ring.
    brightness = prior[12, 0, :, 0].sum(-1)
    assert brightness[12] > brightness[13] > brightness[15]


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['--point', '512', '0'], 'has pixels 0 0 to 511 255'),
        (['--block', '4.0'], "--block '4.0': EVT has 0.0, 1.0, 2.0, 3.0"),
        (['--block', '0.0', '--head', '1'], 'block 0.0 has heads 0 to 0'),
    ],
)
def test_mistakes_get_one_message(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    model = folder / 'tiny_seg.py', 'none'
    with pytest.raises(SystemExit) as stop:
        run_tool('visualize_attention', *model, folder / 'grey.png', *words)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_channel_attention_is_refused() -> None:
    model = build_backbone('AliasFreeViT', arch=dict(embed_dims=16, depth=1, num_heads=2))
    with pytest.raises(UserError, match='attends between channels'):
        choose_block(model, None)


def test_help_is_quick() -> None:
    command = [sys.executable, '-X', 'importtime', TOOLS / 'visualize_attention.py', '--help']
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert '--point' in done.stdout
    assert not any(heavy in done.stderr for heavy in ('| torch\n', 'numpy\n', 'mmengine\n'))
