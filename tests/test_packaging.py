from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from mmspatial.datasets import write_ade20k

ROOT = Path(__file__).parents[1]
PARTS = ('mmspatial', 'configs', 'tools')
FILES = ('setup.py', 'pyproject.toml', 'MANIFEST.in', 'README.md', 'LICENSE', 'CHANGELOG.md')


@pytest.fixture(scope='module')
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel and an sdist from a copy; return their folder."""
    folder = tmp_path_factory.mktemp('build')
    source = folder / 'source'
    skip = shutil.ignore_patterns('__pycache__')
    for part in PARTS:
        shutil.copytree(ROOT / part, source / part, symlinks=True, ignore=skip)
    for file in (*FILES, 'model-index.yml'):
        shutil.copy(ROOT / file, source / file)
    command = [sys.executable, '-m', 'build', '--no-isolation', '--outdir', str(folder)]
    subprocess.run([*command, str(source)], check=True, capture_output=True)
    return folder


@pytest.fixture(scope='module')
def distributions(built: Path) -> tuple[set[str], set[str]]:
    """Return the names of the files in the wheel and in the sdist."""
    with zipfile.ZipFile(next(built.glob('*.whl'))) as wheel:
        in_wheel = {i.filename for i in wheel.infolist() if i.file_size or 'py.typed' in i.filename}
    with tarfile.open(next(built.glob('*.tar.gz'))) as sdist:
        in_sdist = {m.name.partition('/')[2] for m in sdist.getmembers() if m.isfile()}
    return in_wheel, in_sdist


def files_under(folder: str) -> set[str]:
    return {
        str(path.relative_to(ROOT))
        for path in (ROOT / folder).rglob('*')
        if path.is_file() and '__pycache__' not in path.parts
    }


def test_wheel_and_sdist_carry_every_config_and_tool(
    distributions: tuple[set[str], set[str]],
) -> None:
    in_wheel, in_sdist = distributions
    wanted = files_under('configs') | files_under('tools')
    assert 'configs/upernet_evt_b_ade20k.py' in wanted
    of_checkout = {f'tools/{name}.sh' for name in ('demo', 'test', 'env')}
    of_checkout |= files_under('tools/results')
    assert {f'mmspatial/.mim/{name}' for name in wanted - of_checkout} <= in_wheel
    assert not {f'mmspatial/.mim/{name}' for name in of_checkout} & in_wheel
    assert 'mmspatial/.mim/model-index.yml' in in_wheel
    assert wanted <= in_sdist


def test_wheel_carries_every_module(distributions: tuple[set[str], set[str]]) -> None:
    modules = {name for name in files_under('mmspatial') if name.endswith('.py')}
    modules = {name for name in modules if '/.mim/' not in name}
    assert modules <= distributions[0]


def test_wheel_holds_the_package_only(distributions: tuple[set[str], set[str]]) -> None:
    tops = {name.partition('/')[0] for name in distributions[0]}
    assert {top for top in tops if not top.endswith('.dist-info')} == {'mmspatial'}


@pytest.mark.slow
def test_installed_wheel_trains_as_mim_starts_it(built: Path, tmp_path: Path) -> None:
    """`mim train mmspatial upernet_evt_xs_scenes.py ...`, by the steps that mim takes."""
    site, data = tmp_path / 'site', tmp_path / 'data'
    wheel = next(built.glob('*.whl'))
    command = [sys.executable, '-m', 'pip', 'install', '--quiet', '--no-deps', '--no-index']
    subprocess.run([*command, '--target', site, wheel], check=True)
    # The folder with the distribution's name; the tool in it; the one file with the config's name.
    (distribution,) = importlib.metadata.distributions(path=[str(site)])
    package = site / distribution.name
    tool = package / '.mim' / 'tools' / 'train.py'
    (config,) = package.rglob('upernet_evt_xs_scenes.py')

    write_ade20k(data, 2, 1, (96, 128), 0, False)
    options = ['train_cfg.max_iters=1', 'train_dataloader.batch_size=2', 'val_cfg=None']
    options += ['val_dataloader=None', 'val_evaluator=None', 'default_hooks.logger.interval=1']
    words = ['--launcher', 'none', '--data-root', data, '--cfg-options', *options]
    env = {**os.environ, 'PYTHONPATH': str(site), 'CUDA_VISIBLE_DEVICES': ''}
    done = subprocess.run(
        [sys.executable, tool, config, *words],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    (log,) = tmp_path.glob('work_dirs/upernet_evt_xs_scenes/*/*.log')
    assert 'Iter(train) [1/1]' in log.read_text()
    # What it ran was the wheel's, not this checkout's.
    code = 'import mmspatial; print(mmspatial.__file__)'
    done = subprocess.run([sys.executable, '-c', code], cwd=tmp_path, env=env, text=True,
                          capture_output=True, check=True)  # fmt: skip
    assert Path(done.stdout.strip()).is_relative_to(site)
