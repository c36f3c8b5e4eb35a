from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny import TOOLS, run_tool

from mmspatial.apis.benchmarks import bench_ops as bench
from mmspatial.apis.benchmarks import measure, op_cases, parity, targets
from mmspatial.apis.benchmarks.options import CONTENDERS, OPS, parse_ops_args
from mmspatial.apis.benchmarks.records import add_speedups, reason_of
from mmspatial.apis.errors import UserError

CPU = torch.device('cpu')
SETUP = op_cases.Setup(CPU)


def read(file: Path) -> list[dict[str, str]]:
    with file.open(newline='') as lines:
        return list(csv.DictReader(lines))


@pytest.mark.parametrize('name', ['bench_ops', 'bench_backbones'])
def test_help_is_quick(name: str) -> None:
    command = [sys.executable, '-X', 'importtime', str(TOOLS / f'{name}.py'), '--help']
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert '--rounds' in done.stdout
    assert not any(heavy in done.stderr for heavy in ('| torch\n', 'numpy\n', 'mmengine\n'))


@pytest.mark.skipif(sys.platform != 'linux', reason="needs Linux's counters of memory")
def test_memory_counts_buffers_that_are_gone_at_the_end() -> None:
    """In a process of its own, as the tool is: what a long one has freed is used again."""
    code = """
import torch
from mmspatial.apis.benchmarks import measure
from mmspatial.apis.benchmarks.records import reason_of

def run():
    torch.ones(2**20)
    del [torch.ones(2**21), torch.ones(2**22)][:]

cpu, kept = torch.device('cpu'), []
with measure.measuring(cpu):
    run()  # Code that the first call loads is memory too.
    print(measure.peak_memory(run, cpu), measure.kept_memory(run, cpu))
    print(measure.kept_memory(lambda: kept.append(torch.ones(2**22)), cpu))
    try:
        torch.ones(2**50)
    except RuntimeError as error:
        print(reason_of(error))
"""
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    peak, kept, large, *reason = done.stdout.split(maxsplit=3)
    assert float(peak) == pytest.approx(24, abs=1)
    assert float(kept) == pytest.approx(0, abs=1)
    assert float(large) == pytest.approx(16, abs=1)
    assert reason == ['out of memory\n']


def test_rounds_are_interleaved() -> None:
    class Steps(measure.Clock):
        def time(self, run: measure.Run, repeats: int = 1) -> float:
            for _ in range(repeats):
                run()
            return 8.0

    calls = []
    runs = {'a': lambda: calls.append('a'), 'b': lambda: calls.append('b')}
    times = measure.interleave(runs, Steps(CPU), 3)
    assert times == {'a': [8.0] * 3, 'b': [8.0] * 3}
    # Warm-up and trial of each, then rounds of as many calls as fill 20 ms.
    assert ''.join(calls) == 'aabb' + 'aaabbb' + 'bbbaaa' + 'aaabbb'
    found = measure.quantiles([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert found == {'p20_ms': 2.0, 'p50_ms': 3.5, 'p80_ms': 5.0, 'min_ms': 1.0}


def test_all_implementations_can_be_asked_for() -> None:
    assert set(op_cases.IMPLS) < set(CONTENDERS)
    assert set(op_cases.CASES) == set(OPS)


def test_speedups_and_reasons() -> None:
    rows = [{'impl': 'a', 'min_ms': 2.0}, {'impl': 'b', 'min_ms': 8.0}, {'impl': 'c'}]
    add_speedups(rows, 'impl', {'over_b': 'b', 'over_c': 'c'})
    assert [row.get('over_b') for row in rows] == [4.0, 1.0, None]
    assert not any('over_c' in row for row in rows)
    assert reason_of(ValueError('no /home/someone/x.py\nhere')) == 'no … here'


def test_rivals_compute_what_the_reference_does() -> None:
    rows = parity.check_parity(OPS, ('published', 'sdpa_bias'), SETUP, quick=True)
    assert {row['impl'] for row in rows} == {'published', 'sdpa_bias'}
    assert {row['op'] for row in rows} == set(OPS)
    assert {'gradient of gate', 'gradient of var', 'gradient of temperature'} <= {
        row['what'] for row in rows
    }
    assert parity.failures(rows) == []


@pytest.mark.parametrize(
    ('broken', 'said'),
    [
        (lambda x: x * 0, 'output: error 1, limit 5e-06'),
        (lambda x: x / (x.detach() * 0 + 1) + (x - x.detach()), 'gradient of x: error 1,'),
        (lambda x: x * torch.nan, 'output: error inf'),
        (lambda x: x.no_such_thing, 'AttributeError'),
    ],
)
def test_red_gate_reports_nothing(
    broken: op_cases.Contender,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    case = op_cases.Case(
        'a copy', 3, {'x': torch.arange(1.0, 4.0)}, {'reference': torch.clone, 'auto': broken}
    )
    monkeypatch.setattr(parity, 'CASES', {'resample_up': lambda grid, setup: case})
    args = parse_ops_args(['--quick', '--ops', 'resample_up'], tmp_path / 'out')
    assert bench.bench_ops(args) == 1
    printed = capsys.readouterr()
    assert said in printed.err
    assert 'ms' not in printed.out
    assert not (tmp_path / 'out').exists()


def test_a_rival_that_computes_something_else_is_not_timed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    case = op_cases.Case(
        'a copy', 3, {'x': torch.arange(1.0, 4.0)},
        {'published': lambda x: x * 2, 'reference': torch.clone, 'auto': torch.clone},
    )  # fmt: skip
    for module in (parity, bench):
        monkeypatch.setattr(module, 'CASES', {'resample_up': lambda grid, setup: case})
    args = parse_ops_args(['--quick', '--sizes', '2', '--ops', 'resample_up'], tmp_path)
    assert bench.bench_ops(args) == 0
    rows = read(tmp_path / 'ops_cpu_fp32.csv')
    assert {row['impl'] for row in rows if row['min_ms']} == {'reference', 'auto'}
    (reason,) = {row['reason'] for row in rows if row['impl'] == 'published'}
    assert 'error 1, limit 5e-06' in reason


def test_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_tool('bench_ops', '--quick', '--ops', 'gated', 'resample_up', '--sizes', '3', '4',
             '--out', tmp_path)  # fmt: skip
    rows = read(tmp_path / 'ops_cpu_fp32.csv')
    assert list(rows[0]) == list(bench.COLUMNS)
    assert {(row['op'], row['N'], row['pass']) for row in rows} == {
        (op, n, kind)
        for op in ('gated', 'resample_up')
        for n in ('9', '16')
        for kind in ('forward', 'forward+backward')
    }
    gated = [row for row in rows if (row['op'], row['N'], row['pass']) == ('gated', '9', 'forward')]
    assert [row['impl'] for row in gated] == [name for name in CONTENDERS if name != 'flex']
    for row in rows:
        if row['reason']:
            assert row['impl'] in ('chunked', 'table', 'triton')
            assert not row['min_ms']
        else:
            assert 0 < float(row['min_ms']) <= float(row['p20_ms']) <= float(row['p80_ms'])
            assert row['clock'] == 'process'
        assert (row['took'] in (*op_cases.IMPLS, 'matrix')) == (row['impl'] == 'auto')
        if row['impl'] == 'published':
            assert row['speedup_over_published'] == '1'
    assert (tmp_path / 'ops_cpu_fp32.png').read_bytes().startswith(b'\x89PNG')
    report = json.loads((tmp_path / 'targets_cpu.json').read_text())
    assert report['threads'] == 1
    assert [item['met'] for item in report['targets'] if 'fp32 error' in item['target']] == [True]
    assert 'not measured' in capsys.readouterr().out


def test_without_matplotlib_and_targets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, 'matplotlib.figure', None)
    run_tool('bench_ops', '--quick', '--ops', 'resample_down', '--sizes', '2', '--only',
             'auto', '--dtype', 'bf16', '--name', 'mine', '--out', tmp_path)  # fmt: skip
    assert "pip install 'mmspatial[bench]'" in capsys.readouterr().err
    assert sorted(file.name for file in tmp_path.iterdir()) == ['mine.csv']


def test_targets_of_a_cpu() -> None:
    rows = [
        {'op': op, 'N': 3136, 'impl': impl, 'pass': kind, 'min_ms': ms, 'peak_mb': 40.0}
        for op, impl, kind, ms in (
            ('gaussian', 'reference', 'forward+backward', 90.0),
            ('gaussian', 'auto', 'forward+backward', 30.0),
            ('decay_manhattan', 'sdpa_bias', 'forward', 9.0),
            ('decay_manhattan', 'auto', 'forward', 10.0),
            ('decay_manhattan', 'reference', 'forward', 8.0),
        )
    ]
    found = targets.cpu_targets(rows, 1e-6)
    measured = {target.text: (target.measured, target.met) for target in found}
    assert measured['Gaussian forward+backward, N = 3136: faster than the reference'] == (3, True)
    assert measured['Gaussian forward+backward, N = 3136: extra memory'] == (40, False)
    over = 'manhattan decay forward, N = 3136: '
    assert measured[over + 'time over SDPA with a prebuilt dense bias'] == (10 / 9, False)
    assert measured[over + 'faster than the reference'] == (0.8, False)
    worst = 'slowest case over the reference: decay_manhattan, N = 3136, forward'
    assert measured[worst] == (1.25, False)
    assert sum(met is None for _, met in measured.values()) == 4


def test_targets_of_a_gpu() -> None:
    rows = [
        {'op': 'gaussian', 'N': 16384, 'impl': impl, 'pass': kind, 'min_ms': ms, 'peak_mb': 900.0}
        for kind in ('forward', 'forward+backward')
        for impl, ms in (('auto', 15.0), ('floor', 10.0), ('flex', 14.0), ('sdpa_bias', 30.0))
    ]
    found = [target for target in targets.gpu_targets(rows, 1e-6) if target.measured is not None]
    assert [(target.measured, target.met) for target in found] == [
        (1.5, True), (1.5, True), (2.0, True), (14 / 15, False), (900.0, True), (1e-6, True),
    ]  # fmt: skip


@pytest.mark.parametrize('device', ['cuda:99', 'meta', 'nonsense'])
def test_devices_that_are_not_there(device: str) -> None:
    with pytest.raises(UserError, match=device):
        measure.find_device(device)
