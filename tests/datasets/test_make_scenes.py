"""The tool: one line on success, one line on failure, --help at once."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / 'tools' / 'make_scenes.py'
main = runpy.run_path(str(TOOL))['main']
SMALL = ['--num-train', '1', '--num-val', '1', '--size', '48', '64']


def test_writes_then_finds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / 'scenes'
    assert main([str(root), '--layout', 'coco', *SMALL]) == 0
    assert capsys.readouterr().out.startswith('wrote 1 training and 1 validation scenes in')
    assert (root / 'annotations' / 'instances_train2017.json').is_file()
    assert main([str(root), '--layout', 'coco', *SMALL]) == 0
    assert capsys.readouterr().out.startswith('found 1 training')
    assert main([str(root), '--layout', 'coco', *SMALL, '--seed', '4']) == 0
    assert capsys.readouterr().out.startswith('wrote 1 training')


def test_fixed_size(tmp_path: Path) -> None:
    cv2 = pytest.importorskip('cv2')
    assert main([str(tmp_path), *SMALL, '--fixed-size']) == 0
    shapes = {cv2.imread(str(path)).shape for path in (tmp_path / 'images').rglob('*.jpg')}
    assert shapes == {(48, 64, 3)}


@pytest.mark.parametrize(
    ('extra', 'message'),
    [([], 'name a new or an empty folder'), (['--num-val', '0'], 'need at least 1 each')],
)
def test_refusal_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], extra: list[str], message: str
) -> None:
    (tmp_path / 'photo.jpg').write_bytes(b'mine')
    assert main([str(tmp_path), *SMALL, *extra]) == 2
    out, err = capsys.readouterr()
    assert out == ''
    assert err.startswith('error: ')
    assert message in err
    assert err.count('\n') == 1


def test_every_layout_can_be_asked_for(tmp_path: Path) -> None:
    from mmspatial.datasets import WRITERS

    for layout in WRITERS:
        assert main([str(tmp_path / layout), '--layout', layout, *SMALL]) == 0
    with pytest.raises(SystemExit):
        main([str(tmp_path), '--layout', 'voc'])


def test_help_imports_nothing_heavy() -> None:
    code = (
        'import runpy, sys\n'
        f'sys.path.append({str(TOOL.parent)!r})\n'
        'sys.argv = ["make_scenes.py", "--help"]\n'
        f'try: runpy.run_path({str(TOOL)!r}, run_name="__main__")\n'
        'except SystemExit as end: assert not end.code\n'
        'assert not {"numpy", "cv2", "torch"} & set(sys.modules)\n'
    )
    done = subprocess.run([sys.executable, '-c', code], check=True, capture_output=True, text=True)
    assert '--layout' in done.stdout
