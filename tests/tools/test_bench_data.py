from __future__ import annotations

import csv
from pathlib import Path

import pytest
from tiny import run_tool, write_config

from mmspatial.apis.benchmarks import bench_data


def read(file: Path) -> list[dict[str, str]]:
    with file.open(newline='') as lines:
        return list(csv.DictReader(lines))


def test_transforms_and_loaders_are_measured(tmp_path: Path) -> None:
    config = write_config(tmp_path, 'det')
    run_tool('bench_data', config, '--quick', '--workers', 0, 1, '--out', tmp_path)
    rows = read(tmp_path / 'data_cpu.csv')
    assert list(rows[0]) == list(bench_data.COLUMNS)
    assert {row['data'] for row in rows} == {'scenes of 64 x 48'}
    steps = ['LoadImageFromFile', 'LoadAnnotations', 'Resize', 'PackDetInputs', 'all']
    assert [row['part'] for row in rows] == [*steps, 'loader', 'loader']
    cpu = [float(row['cpu_ms_per_image']) for row in rows[:5]]
    assert cpu[-1] == pytest.approx(sum(cpu[:-1]), rel=0.01)
    assert [row['workers'] for row in rows[5:]] == ['0', '1']
    for row in rows[5:]:
        assert float(row['images_s']) > 0
        # Without workers, all of the work is the main process's, at its turn.
        share = float(row['data_ms']) / (float(row['data_ms']) + float(row['step_ms']))
        assert float(row['data_share']) == pytest.approx(share, abs=0.2)


def test_a_folder_is_of_one_config(
    ade20k: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, 'seg')
    common = ('--data-root', ade20k, '--quick', '--workers', 0, '--out', tmp_path)
    run_tool('bench_data', config, *common, '--name', 'mine')
    assert {row['data'] for row in read(tmp_path / 'mine.csv')} == {'data set'}
    with pytest.raises(SystemExit):
        run_tool('bench_data', config, config, *common)
    assert 'measure several one after the other' in capsys.readouterr().err
