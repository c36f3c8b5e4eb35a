"""The targets of whole backbones, from made-up rows of the target run."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from mmspatial.apis.benchmarks import backbone_targets
from mmspatial.apis.benchmarks.backbone_names import find_backbone
from mmspatial.apis.benchmarks.parts import FORMS, TARGET_RUN
from mmspatial.apis.benchmarks.targets import Target, summary

Row = dict[str, Any]


@pytest.fixture(autouse=True)
def flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbone_targets, 'cpu_info', lambda field: 'sse2 avx512_bf16')


def make_rows() -> list[Row]:
    """Return rows of all that the target run measures: each form twice as fast as the next."""
    return [
        {
            'part': part.name, 'pass': kind, 'size': size, 'batch': part.batch, 'dtype': dtype,
            'backbone': backbone, 'form': form, 'peak_mb': size**2 * 1.0,
            'min_ms': size**2 * 2.0 ** FORMS.index(form),
        }
        for part in TARGET_RUN
        for kind, size, backbone, form, dtype in itertools.product(
            part.passes, part.sizes, part.backbones, ('', *part.forms), part.dtypes
        )
        if not (form and backbone.startswith('timm:'))
    ]  # fmt: skip


def reached(rows: list[Row]) -> dict[str, Target]:
    targets = backbone_targets.backbone_targets(rows)
    found = {target.text: target for target in targets}
    assert len(found) == len(targets)
    return found


def change(rows: list[Row], part: str, backbone: str, form: str = '', **values: object) -> None:
    """Change a row, in which nothing stands that is None."""
    (row,) = (r for r in rows if (r['part'], r['backbone'], r['form']) == (part, backbone, form))
    changed = {**row, **values}
    row.clear()
    row.update((name, value) for name, value in changed.items() if value is not None)


def test_the_target_run_measures_all_that_targets_are_about() -> None:
    found = reached(make_rows())
    assert [text for text, target in found.items() if target.measured is None] == []
    assert found['forward-224, rmt_s: faster than published'].measured == 8.0
    assert found['forward-512, sdt_s: time over rmt_s'].measured == 1.0
    assert found['growth, evt_s: exponent of memory in the number of pixels'].met
    assert 'forward-224, rmt_t: faster than published' not in found


def test_nothing_measured() -> None:
    found = reached([])
    assert found
    assert {target.met for target in found.values()} == {None}
    assert set(found) == set(reached(make_rows()))


def test_met_and_missed() -> None:
    rows = make_rows()
    change(rows, 'forward-512', 'rmt_s', min_ms=6.0)
    change(rows, 'forward-512', 'rmt_s', 'fused', min_ms=5.0)
    change(rows, 'forward-512', 'rmt_s', 'published', min_ms=7.0)
    change(rows, 'forward-512', 'sdt_s', min_ms=8.0)
    change(rows, 'forward-512', 'evt_s', min_ms=9.0)
    change(rows, 'forward-512', backbone_targets.SWIN, min_ms=9.0)
    change(rows, 'forward-1024', 'locatvit_b', peak_mb=3.0)
    change(rows, 'forward-1024', 'vit_b', peak_mb=2.0)
    failed = dict(min_ms=None, peak_mb=None, reason='out of memory')
    change(rows, 'train-1024', 'locatvit_b', 'published', **failed)
    change(rows, 'forward-512', backbone_targets.CONVNEXT, **failed)
    found = reached(rows)
    assert {text: (target.measured, target.met) for text, target in found.items()}.items() >= {
        'forward-512, rmt_s fused: faster than published': (1.4, False),
        'forward-512, sdt_s: time over rmt_s fused': (1.6, True),
        f'forward-512, evt_s: time over {backbone_targets.SWIN}': (1.0, True),
        f'forward-512, evt_s: time over {backbone_targets.CONVNEXT}': (None, None),
        "forward-1024, locatvit_b: extra memory over vit_b's": (1.5, True),
    }.items()
    # Where the published form does not fit, it has no memory to compare with.
    assert not any(text.startswith('train-1024') for text in found)


def test_an_aim_is_neither_met_nor_missed() -> None:
    target = reached(make_rows())[f'forward-224, evt_s: time over {backbone_targets.CONVNEXT}']
    assert (target.measured, target.met) == (1.0, None)
    assert summary([target]) == f'       {target.text}: 1x (aim <= 1x)'


def test_bf16_counts_on_processors_that_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    everywhere = set(reached([]))
    monkeypatch.setattr(backbone_targets, 'cpu_info', lambda field: 'sse2 avx512f')
    left = everywhere - set(reached([]))
    assert len(left) == 5
    assert all('autocast' in text for text in left)


def test_names_of_the_target_run() -> None:
    names = {name for part in TARGET_RUN for name in part.backbones}
    assert {find_backbone(name).name for name in names} == names
    assert len({part.name for part in TARGET_RUN}) == len(TARGET_RUN)
