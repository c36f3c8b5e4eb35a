from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import TOOLS

from mmspatial.apis.processes import main


def write_program(path: Path, body: str) -> None:
    path.write_text(f'#!/bin/bash\n{body}\n')
    path.chmod(0o755)


def run_script(name: str, *words: str, path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ['bash', TOOLS / name, *words],
        env={**os.environ, 'PATH': f'{path}:{os.environ["PATH"]}', **env},
        cwd=path,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ('script', 'words', 'options'),
    [
        ('slurm_train.sh', ['c.py', 'work'], 'train.py c.py --launcher pytorch --work-dir work'),
        ('slurm_test.sh', ['c.py', 'k.pth'], 'test.py c.py k.pth --launcher pytorch'),
    ],
)
def test_slurm_starts_torchrun_once_per_node(
    tmp_path: Path, script: str, words: list[str], options: str
) -> None:
    # A second node of a job, played by programs which stand for Slurm's and for Python.
    write_program(
        tmp_path / 'srun',
        f'echo "$@" >{tmp_path}/srun.txt\n'
        'while [ "$1" != bash ]; do shift; done\n'
        'SLURM_NNODES=2 SLURM_NODEID=1 SLURM_JOB_ID=7 SLURM_JOB_NODELIST=list exec "$@"',
    )
    write_program(tmp_path / 'scontrol', 'printf "first\\nsecond\\n"')
    write_program(tmp_path / 'python', 'echo "$NNODES $NODE_RANK $MASTER_ADDR $PORT" "${@//*\\//}"')
    done = run_script(
        script, 'part', 'job', *words, '--seed', '1',
        path=tmp_path, GPUS='8', GPUS_PER_NODE='4', SRUN_ARGS='--quiet', PYTHON='python',
    )  # fmt: skip
    assert done.stdout.strip() == (
        f'2 1 first 20007 -m mmspatial.apis.processes 4 {options} --seed 1'
    ), done.stderr
    srun = (tmp_path / 'srun.txt').read_text()
    for option in (
        '--partition=part', '--job-name=job', '--nodes=2', '--ntasks-per-node=1',
        '--gres=gpu:4', '--cpus-per-task=20', '--quiet',
    ):  # fmt: skip
        assert f'{option} ' in srun


@pytest.mark.parametrize('numbers', [('12', '8'), ('4', '8'), ('x', '8'), ('8', '0')])
def test_slurm_refuses_nodes_that_are_not_used_as_wholes(
    tmp_path: Path, numbers: tuple[str, str]
) -> None:
    write_program(tmp_path / 'srun', f'touch {tmp_path}/started')
    gpus, per_node = numbers
    done = run_script(
        'slurm_train.sh', 'part', 'job', 'c.py', 'work',
        path=tmp_path, GPUS=gpus, GPUS_PER_NODE=per_node,
    )  # fmt: skip
    assert done.returncode == 2
    assert f'GPUS={gpus} is no multiple of GPUS_PER_NODE={per_node}' in done.stderr
    assert not (tmp_path / 'started').exists()


@pytest.mark.parametrize('tool', sorted(file.name for file in TOOLS.glob('[a-z]*.py')))
def test_tools_say_what_to_do_where_the_package_is_missing(tmp_path: Path, tool: str) -> None:
    # Without site-packages, where an environment keeps what is installed.
    done = subprocess.run(
        [sys.executable, '-E', '-S', TOOLS / tool, '--help'],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith('error: mmspatial is not installed')
    assert done.stderr.count('\n') == 1


@pytest.mark.parametrize(
    'script', ['dist_train.sh', 'dist_test.sh', 'slurm_train.sh', 'slurm_test.sh']
)
def test_usage_is_shown(tmp_path: Path, script: str) -> None:
    done = run_script(script, 'config.py', path=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith('usage: bash')


@pytest.mark.parametrize(
    ('code', 'expected'), [('sys.exit(2)', 2), ('os.kill(os.getpid(), 9)', 137)]
)
def test_the_exit_code_of_a_process_is_kept(tmp_path: Path, code: str, expected: int) -> None:
    script = tmp_path / 'fails.py'
    script.write_text(f'import os, sys\n{code}')
    with pytest.raises(SystemExit) as caught:
        main(['1', str(script)])
    assert caught.value.code == expected


def test_the_number_of_processes_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(['two', 'train.py'])
    assert caught.value.code == 2
    assert "not 'two'" in capsys.readouterr().err
