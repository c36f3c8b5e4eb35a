"""What `tools/bench_ops.py` and `tools/bench_backbones.py` do."""
