"""The page on adding a backbone: its example works, and passes the contract that it names."""

from __future__ import annotations

import doctest
import importlib.util
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import mmengine.registry
import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.structures import PixelData

import mmspatial
import mmspatial.registry
from mmspatial import models
from mmspatial.apis.backbones import check_channels, swap_backbone
from mmspatial.models import backbones

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / 'docs' / 'add_a_backbone.md').read_text()
BLOCKS = re.findall(r'^```(\w+)\n(.*?)^```$', TEXT, re.MULTILINE | re.DOTALL)
PYTHON = [body for kind, body in BLOCKS if kind == 'python']
# Blocks that are files, or rows of one, begin with its name; the others are sessions.
FILES = {match[1]: body for body in PYTHON if (match := re.match(r'# (\S+\.py)\n', body))}
SESSIONS = [body for body in PYTHON if body.startswith('>>> ')]
CLASS = 'mmspatial/models/backbones/fade.py'
BASE = 'configs/_base_/backbones/fade_t.py'
CONTRACT = 'tests/models/test_contract.py'
OWN = 'upernet_fade.py'
CHANNELS = (32, 64, 128, 256)


def load_module(name: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope='module')
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Do to a scratch folder with our configs what the page says, the leaf's `sed` included."""
    folder = tmp_path_factory.mktemp('checkout')
    shutil.copytree(ROOT / 'configs', folder / 'configs')
    for name, body in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(body)
    (old, new, source, target) = re.findall(r'^sed s/(\w+)/(\w+)/ (\S+) > (\S+)$', TEXT, re.M)[0]
    (folder / target).write_text((folder / source).read_text().replace(old, new))
    return folder


@pytest.fixture
def added(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let the class be one of the package's, as it is with the page's imports."""
    try:
        module = load_module('mmspatial.models.backbones.fade', checkout / CLASS, monkeypatch)
        for package in (backbones, models):
            monkeypatch.setattr(package, 'FadeFormer', module.FadeFormer, raising=False)
            monkeypatch.setattr(package, '__all__', [*package.__all__, 'FadeFormer'])
        yield checkout
    finally:
        mmspatial.registry.MODELS.module_dict.pop('FadeFormer', None)


def train_step(cfg: Config, type_name: str) -> None:
    """Build a segmentor from its config, with a narrow head, and take one step."""
    # Not before mmspatial, without which mmseg may lack mmcv's ops.
    from mmseg.structures import SegDataSample

    assert cfg.model.backbone.type == type_name
    check_channels(cfg.model, CHANNELS)
    cfg.model.decode_head.channels = cfg.model.auxiliary_head.channels = 8
    cfg.model.data_preprocessor.size = (64, 64)
    mmengine.registry.init_default_scope(cfg.default_scope)
    model = mmengine.registry.MODELS.build(cfg.model)
    model.init_weights()
    assert model.backbone.out_channels == CHANNELS
    assert model.backbone.out_strides == (4, 8, 16, 32)
    sample = SegDataSample(gt_sem_seg=PixelData(data=torch.randint(0, 150, (1, 64, 64))))
    data = dict(inputs=[torch.randint(0, 256, (3, 64, 64)).byte()] * 2, data_samples=[sample] * 2)
    rates = [p for name, p in model.named_parameters() if name.endswith('prior.rate')]
    before = [rate.detach().clone() for rate in rates]
    optim_wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    losses = model.train().train_step(data, optim_wrapper)
    assert all(value.isfinite() for value in losses.values())
    assert len(rates) == 10
    # Weight decay alone would change the rates too; this is the mean of their gradients.
    assert all(optim_wrapper.optimizer.state[rate]['exp_avg'].abs().max() > 0 for rate in rates)
    assert not any(torch.equal(rate, old) for rate, old in zip(rates, before, strict=True))


def test_every_python_block_is_run() -> None:
    assert set(FILES) == {CLASS, BASE, CONTRACT, OWN}
    assert len(FILES) + len(SESSIONS) == len(PYTHON)
    assert {kind for kind, _ in BLOCKS} == {'python', 'bash'}


def test_files_exist() -> None:
    """Those which the page tells to make aside."""
    written = re.findall(r'(?<![\w/.])((?:tools|configs|mmspatial|tests|docs)/[\w./]*\w/?)', TEXT)
    assert {CONTRACT, 'mmspatial/models/trunks/'} <= set(written)
    assert 'tests/test_docs.py' in written
    names = {name for name in written if 'fade' not in name}
    assert sorted(name for name in names if not (ROOT / name).exists()) == []
    assert (ROOT / 'model-index.yml').exists()


def test_sessions_print_what_the_page_says(added: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(added)
    parser, runner, names = doctest.DocTestParser(), doctest.DocTestRunner(), {}
    for i, body in enumerate(SESSIONS):
        session = parser.get_doctest(body, names, f'session {i}', None, 0)
        assert runner.run(session, clear_globs=False).failed == 0
        names = session.globs
    assert runner.tries == 5
    keys = {re.sub(r'\.\d+', '.#', key) for key in names['model'].state_dict()}
    for prefix in ('embed.', 'stages.#.blocks.#.', 'downsamples.#.', 'out_norms.#.'):
        assert any(key.startswith(prefix) for key in keys)
        assert f'`{prefix[:-1]}`'.replace('#', 'S', 1).replace('#', 'B') in TEXT


def test_the_prior_is_softmax_with_its_bias(added: Path) -> None:
    prior = sys.modules['mmspatial.models.backbones.fade'].LearnedDecay(2)
    q, k, v = torch.randn(3, 1, 2, 12, 4)
    tokens = torch.cartesian_prod(torch.arange(3.0), torch.arange(4.0))
    apart = torch.cdist(tokens, tokens, p=1)
    rates = torch.log1p(prior.rate.exp())[:, None, None]
    expected = (q @ k.mT / 2 - rates * apart).softmax(-1) @ v
    torch.testing.assert_close(prior(q, k, v, (3, 4)), expected, rtol=0, atol=1e-5)


def test_the_leaf_trains(added: Path) -> None:
    configs = added / 'configs'
    cfg, swapped = (
        Config.fromfile(configs / f'upernet_{name}_ade20k.py') for name in ('fade_t', 'rmt_s')
    )
    swap_backbone(swapped, 'fade_t', configs / '_base_' / 'backbones')
    assert swapped.model == cfg.model
    train_step(cfg, 'mmspatial.FadeFormer')


def test_the_config_outside_of_the_checkout_trains(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = 'from mmspatial.registry import MODELS', 'from mmengine.registry import MODELS'
    assert f'`{theirs}`' in TEXT
    (tmp_path / 'fade.py').write_text(FILES[CLASS].replace(ours, theirs))
    monkeypatch.syspath_prepend(tmp_path)
    try:
        train_step(Config.fromfile(checkout / OWN), 'FadeFormer')
        assert 'FadeFormer' not in mmspatial.registry.MODELS.module_dict
    finally:
        mmengine.registry.MODELS.module_dict.pop('FadeFormer', None)
        sys.modules.pop('fade', None)


def test_the_example_passes_the_contract(added: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of it; all of it is what the page tells to run."""
    contract = load_module('contract_of_the_page', ROOT / CONTRACT, monkeypatch)
    rows: dict[str, Any] = eval(f'{{{FILES[CONTRACT]}}}', vars(contract))
    (case,) = rows.items()
    assert f'`python -m pytest {CONTRACT} -k {case[0]}`' in TEXT
    contract.test_any_size_in_any_memory_format(case, (53, 77))
    contract.test_every_parameter_gets_a_finite_gradient(case)
    contract.test_frozen_stages(case, 1)
    contract.test_checkpointing_gives_equal_outputs_and_gradients(case)
    contract.test_copies_compute_the_same(case)
