from __future__ import annotations

import subprocess
import sys

from tiny import TOOLS

NAMES = sorted(file.stem for file in TOOLS.glob('[a-z]*.py'))
_HEAVY = ('torch', 'numpy', 'cv2', 'mmengine', 'mmcv', 'mmseg', 'mmdet', 'timm', 'matplotlib')


def test_every_tool_has_help_and_imports_nothing_heavy_for_it() -> None:
    """All in one fresh interpreter, each as if it were the script that runs."""
    code = f"""
import runpy, sys
sys.path.insert(0, {str(TOOLS)!r})
for name in {NAMES!r}:
    sys.argv = [f'{{name}}.py', '--help']
    try:
        runpy.run_path(f'{TOOLS}/{{name}}.py', run_name='__main__')
    except SystemExit as end:
        assert not end.code, name
    heavy = sys.modules.keys() & set({_HEAVY!r})
    assert not heavy, (name, heavy)
"""
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in NAMES:
        assert f'usage: {name}.py ' in done.stdout
