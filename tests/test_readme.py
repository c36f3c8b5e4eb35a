"""What the README names exists; its commands themselves run in other tests."""

from __future__ import annotations

import ast
import functools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / 'README.md').read_text()
BLOCKS = re.findall(r'^```(\w*)\n(.*?)^```$', TEXT, re.MULTILINE | re.DOTALL)
PROSE = re.sub(r'^```.*?^```$', '', TEXT, flags=re.MULTILINE | re.DOTALL)
LINES = [line for kind, body in BLOCKS if kind == 'bash' for line in body.splitlines() if line]
TOOL_LINES = [line for line in LINES if line.startswith('python tools/')]
SNIPPETS = [body for kind, body in BLOCKS if kind == 'python']


@functools.cache
def options(tool: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, ROOT / tool, '--help'], capture_output=True, text=True, check=True
    )
    return set(re.findall(r'(?<![\w-])--[a-z][\w-]*', done.stdout))


def variants(name: str) -> list[str]:
    """Write out `a_{b,c}_{d,e}`."""
    found = re.search(r'\{([^}]*)\}', name)
    if not found:
        return [name]
    before, after = name[: found.start()], name[found.end() :]
    return [full for part in found[1].split(',') for full in variants(before + part + after)]


def test_there_is_something_to_check() -> None:
    assert len(TOOL_LINES) >= 5
    assert SNIPPETS
    assert {kind for kind, _ in BLOCKS} <= {'bash', 'python', ''}


def test_links_and_pictures_exist() -> None:
    targets = re.findall(r'\]\(([^)\s]+)\)', TEXT)
    local = [target.partition('#')[0] for target in targets if not target.startswith('https://')]
    assert local
    assert [name for name in local if not (ROOT / name).exists()] == []


def test_files_and_folders_exist() -> None:
    written = re.findall(r'(?<![\w/.])((?:tools|configs|mmspatial|tests|docs)/[\w./-]*)', TEXT)
    names = {name.rstrip('.') for name in written}
    assert 'tools/train.py' in names
    assert 'configs/upernet_evt_b_ade20k.py' in names
    assert sorted(name for name in names if not (ROOT / name).exists()) == []


def test_scripts_and_configs_named_without_a_folder_exist() -> None:
    """Scripts in prose are ours, or tools that both hosts carry under `.mim/tools`."""
    ours = {file.name for part in ('tools', 'mmspatial') for file in (ROOT / part).rglob('*.*')}
    mmseg, mmdet = (
        {file.name for file in Path(folder, '.mim', 'tools').rglob('*.py')} for folder in packages()
    )
    scripts = set(re.findall(r'`(\w+\.(?:py|sh))`', PROSE))
    assert 'train.py' in scripts
    assert sorted(scripts - ours - (mmseg & mmdet)) == []

    configs = {path.stem for path in (ROOT / 'configs').glob('*.py')}
    named = re.findall(r'\b(?:upernet|semfpn|maskrcnn)_[\w{},]+', TEXT)
    assert len(named) > 3
    assert [full for name in named for full in variants(name) if full not in configs] == []


def packages() -> list[str]:
    import mmdet
    import mmseg

    return [*mmseg.__path__, *mmdet.__path__]


@pytest.mark.parametrize('line', TOOL_LINES)
def test_options_in_commands_exist(line: str) -> None:
    _, tool, *words = shlex.split(line, comments=True)
    named = {word.partition('=')[0] for word in words if word.startswith('--')}
    assert named <= options(tool)


def test_options_in_prose_exist() -> None:
    named = set(re.findall(r'`(--[a-z][\w-]*)', PROSE))
    assert '--resume' in named
    tools = ('train', 'test', 'export_onnx')
    known = set().union(*(options(f'tools/{tool}.py') for tool in tools))
    assert named <= known | {'--help'}


def test_extras_exist() -> None:
    extras = set(re.findall(r"pip install '\.\[(\w+)\]'", TEXT))
    assert {'onedl', 'openmmlab', 'bench'} <= extras
    setup = (ROOT / 'setup.py').read_text()
    assert all(f"'{extra}':" in setup or f'{extra}=' in setup for extra in extras)


@pytest.mark.parametrize('code', SNIPPETS)
def test_snippets_name_what_exists(code: str) -> None:
    """Each compiles, and what it imports can be imported (there as here, mmspatial first)."""
    imports = [
        node for node in ast.parse(code).body if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    import mmspatial

    assert mmspatial
    for node in imports:
        exec(compile(ast.Module([node], []), 'README.md', 'exec'), {})
