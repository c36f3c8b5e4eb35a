#!/usr/bin/env bash
# From a clone to a trained model and its pictures, on any machine with Python.
#
#   bash tools/demo.sh          EVT + UperNet on drawn street scenes in ADE20K's layout
#   bash tools/demo.sh coco     EVT + Mask R-CNN on the same scenes in COCO's layout
set -euo pipefail
# shellcheck source=tools/env.sh
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"

case "${1:-ade20k}" in
    ade20k) layout=ade20k config=upernet_evt_xs_scenes size='144 192' ;;
    coco) layout=coco config=maskrcnn_evt_xs_scenes size='192 256' ;;
    *)
        echo "error: unknown demo '$1': say 'ade20k' (the default) or 'coco'" >&2
        exit 2
        ;;
esac
use_environment onedl ''
cd "$ROOT"
# Two hardware threads of one core are slower than one as soon as anything else runs.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((($(nproc) + 1) / 2))}

work_dir=work_dirs/$config
# shellcheck disable=SC2086
"$PYTHON" tools/make_scenes.py "data/scenes/$layout" --layout "$layout" --size $size
"$PYTHON" tools/train.py "configs/$config.py" --work-dir "$work_dir" --seed 0
checkpoint=$(cat "$work_dir/last_checkpoint")
"$PYTHON" tools/test.py "configs/$config.py" "$checkpoint" --work-dir "$work_dir"
"$PYTHON" tools/show_results.py "configs/$config.py" "$checkpoint" --out-dir "$work_dir/pictures"
echo
echo "The trained model: $checkpoint"
echo "Its pictures, image | truth | prediction: $ROOT/$work_dir/pictures"
