"""Start a tool in several processes with torchrun: ``GPUS SCRIPT [arguments]``."""

from __future__ import annotations

import os
import sys


def main(argv: list[str] | None = None) -> None:
    """Run a script in several processes on this machine, and on others if they are named.

    The environment variables NNODES, NODE_RANK, MASTER_ADDR and PORT describe several machines;
    without them a free port is found. torchrun's own report of a failed process is left out:
    the process has said what was wrong.

    Args:
        argv: The number of processes, the script and its arguments; None for the command line.
    """
    count, *command = sys.argv[1:] if argv is None else argv
    if not count.isdigit() or int(count) < 1:
        print(f"error: the number of GPUs must be 1 or more, not '{count}'", file=sys.stderr)
        raise SystemExit(2)
    env = os.environ
    env.setdefault('OMP_NUM_THREADS', '1')
    if env.get('NNODES', '1') == '1' and 'PORT' not in env:
        meeting = ['--standalone']
    else:
        meeting = [
            f'--nnodes={env.get("NNODES", "1")}',
            f'--node-rank={env.get("NODE_RANK", "0")}',
            f'--master-addr={env.get("MASTER_ADDR", "127.0.0.1")}',
            f'--master-port={env.get("PORT", "29500")}',
        ]
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        run.run(run.parse_args([*meeting, f'--nproc-per-node={count}', *command]))
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
        # A negative code is the signal that ended the process.
        raise SystemExit(code if code > 0 else 128 - code) from None


if __name__ == '__main__':
    main()
