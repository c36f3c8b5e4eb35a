from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ('mmspatial', 'configs', 'tools')
FILES = ('setup.py', 'pyproject.toml', 'MANIFEST.in', 'README.md', 'LICENSE', 'CHANGELOG.md')


@pytest.fixture(scope='module')
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], set[str]]:
    """Build a wheel and an sdist from a copy; return the names of their files."""
    folder = tmp_path_factory.mktemp('build')
    source = folder / 'source'
    skip = shutil.ignore_patterns('__pycache__')
    for part in PARTS:
        shutil.copytree(ROOT / part, source / part, symlinks=True, ignore=skip)
    for file in (*FILES, 'model-index.yml'):
        shutil.copy(ROOT / file, source / file)
    command = [sys.executable, '-m', 'build', '--no-isolation', '--outdir', str(folder)]
    subprocess.run([*command, str(source)], check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob('*.whl'))) as wheel:
        in_wheel = {i.filename for i in wheel.infolist() if i.file_size or 'py.typed' in i.filename}
    with tarfile.open(next(folder.glob('*.tar.gz'))) as sdist:
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
