from __future__ import annotations

from typing import Any

import pytest

from mmspatial import build_backbone, list_backbones
from mmspatial.models.trunks.arch import resolve_arch

VARIANTS: dict[str, dict[str, Any]] = {
    'tiny': dict(dims=(8, 16, 32), depths=(1, 2, 1), rate=0.1),
    'large': dict(dims=(16, 32, 64), depths=(2, 2, 2), rate=0.3),
    'plain': dict(dims=192, patch=16, rate=0.2),
}


def test_name_gives_a_row_that_callers_may_change() -> None:
    fields = resolve_arch('Net', 'large', VARIANTS)
    assert fields == VARIANTS['large']
    fields['rate'] = 1.0
    assert VARIANTS['large']['rate'] == 0.3


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        ValueError,
        match=r"Net has no arch 'lerge', did you mean 'large'\? Known: tiny, large, plain",
    ):
        resolve_arch('Net', 'lerge', VARIANTS)


def test_dict_is_completed_from_the_first_row_that_fits() -> None:
    fields = resolve_arch('Net', dict(dims=[4, 4, 4]), VARIANTS)
    assert fields == dict(dims=(4, 4, 4), depths=(1, 2, 1), rate=0.1)
    assert resolve_arch('Net', dict(patch=8), VARIANTS) == dict(dims=192, patch=8, rate=0.2)
    assert resolve_arch('Net', {}, VARIANTS) == VARIANTS['tiny']


def test_dict_in_config_syntax_and_the_given_dict_is_left_alone() -> None:
    given = dict(dims=[4, 4, 4], depths=2)
    resolve_arch('Net', given, VARIANTS)
    assert given == dict(dims=[4, 4, 4], depths=2)


def test_single_value_serves_all_stages() -> None:
    assert resolve_arch('Net', dict(depths=3), VARIANTS)['depths'] == (3, 3, 3)
    fields = resolve_arch('Net', dict(dims=8, depths=[1, 1, 1]), VARIANTS)
    assert fields['dims'] == (8, 8, 8)


def test_uniform_defaults_and_single_values_fit_any_number_of_stages() -> None:
    row = dict(dims=(8, 16), scale=(1, 1), depths=(2, 2))
    fields = resolve_arch('Net', dict(dims=[4, 4, 4], depths=1), {'tiny': row})
    assert fields == dict(dims=(4, 4, 4), scale=(1, 1, 1), depths=(1, 1, 1))
    fields = resolve_arch('Net', dict(dims=3), {'tiny': row})
    assert fields == dict(dims=(3, 3), scale=(1, 1), depths=(2, 2))


def test_unknown_field_is_named_with_a_suggestion() -> None:
    with pytest.raises(
        ValueError,
        match=r"Net: arch has no field 'depth', did you mean 'depths'\? "
        r'Known: depths, dims, patch, rate',
    ):
        resolve_arch('Net', dict(depth=3), VARIANTS)


def test_fields_of_different_kinds_of_rows_do_not_mix() -> None:
    with pytest.raises(ValueError, match='no variant has all of the fields patch, depths'):
        resolve_arch('Net', dict(patch=8, depths=3), VARIANTS)


def test_number_of_stages_must_agree() -> None:
    with pytest.raises(ValueError, match=r"differ in the number of stages: .*'depths': 2"):
        resolve_arch('Net', dict(dims=[4, 4, 4], depths=[1, 1]), VARIANTS)


def test_unknown_backbone_lists_the_known_ones() -> None:
    for name in ('RTM', 'rmt'):
        with pytest.raises(
            ValueError, match=rf"no backbone '{name}', did you mean 'RMT'\?.*Known: .*EVT"
        ):
            build_backbone(name)


def test_backbones_are_found_with_and_without_scope() -> None:
    arch = dict(embed_dims=[8], depths=1, num_heads=1, mlp_ratios=1, decay_range=4,
                decomposed=True, layer_scale=None)  # fmt: skip
    for name in ('RMT', 'mmspatial.RMT'):
        model = build_backbone(name, arch=arch, out_indices=(0,))
        assert type(model).__name__ == 'RMT'
        assert model.out_channels == (8,)
    assert {'EVT', 'RMT'} <= set(list_backbones())
    assert {'tiny', 'small', 'base', 'large'} <= set(list_backbones()['EVT'])
