"""What a run of `tools/bench_backbones.py` measures, without a heavy import."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

# A backbone as it is; with batch norms and the like folded; through torch.compile, folded before if
# that can be; as its authors compute it.
FORMS = ('', 'fused', 'compiled', 'published')
# One of each of ours, of a size that is used.
OURS = ('rmt_s', 'sdt_s', 'evt_s', 'locatvit_b', 'aliasfree_s')
SWIN, CONVNEXT = 'timm:swin_small_patch4_window7_224', 'timm:convnext_small'


@dataclass(frozen=True)
class Part:
    """Backbones that are measured in turn, anew at each size and in each pass.

    Attributes:
        backbones: Their names, see `backbone_names.find_backbone`.
        name: A word for it; empty for what a command line says.
        sizes: Sides of the square images.
        passes: ``'forward'`` (evaluation), ``'train'`` (forward, backward, optimizer).
        batch: Images at once.
        dtypes: Of autocast; fp32 for none.
        forms: Those of `FORMS` that are measured beside the first one, where there are any.
        profile: Whether operators are profiled too.
    """

    backbones: Sequence[str]
    name: str = ''
    sizes: Sequence[int] = (224,)
    passes: Sequence[str] = ('forward', 'train')
    batch: int = 1
    dtypes: Sequence[str] = ('fp32',)
    forms: Sequence[str] = ()
    profile: bool = False

    def shrunk(self) -> Part:
        """Return the same for images of an eighth of the side."""
        return replace(self, sizes=[size // 8 for size in self.sizes])


_MAIN = (
    'rmt_t', 'rmt_s', 'rmt_b', 'sdt_s', 'evt_s', 'locatvit_b', 'vit_b', 'aliasfree_s', SWIN,
    CONVNEXT,
)  # fmt: skip
_BESIDE = ('fused', 'published')
_FORWARD, _TRAIN, _ONLY_PUBLISHED = ('forward',), ('train',), ('published',)

# What shows whether `backbone_targets` are reached: each part by its name, at one size but for the
# growth.
TARGET_RUN = (
    Part(_MAIN, 'forward-224', (224,), _FORWARD, forms=_BESIDE),
    Part(_MAIN, 'forward-512', (512,), _FORWARD, forms=_BESIDE, profile=True),
    Part(('locatvit_b', 'vit_b'), 'forward-1024', (1024,), _FORWARD, forms=_ONLY_PUBLISHED),
    Part(
        ('rmt_s', 'locatvit_b', 'aliasfree_s'), 'train-512', (512,), _TRAIN, batch=2,
        forms=_ONLY_PUBLISHED,
    ),
    Part(('locatvit_b',), 'train-1024', (1024,), _TRAIN, forms=_ONLY_PUBLISHED),
    Part(
        ('evt_s', 'rmt_s', 'sdt_s', 'locatvit_t', 'aliasfree_s'), 'growth',
        (224, 512, 1024, 2048), _FORWARD,
    ),
    Part(OURS, 'bf16', (512,), _FORWARD, dtypes=('fp32', 'bf16')),
    Part((*OURS, 'rmt_b'), 'compiled', (224,), _FORWARD, forms=('compiled', *_BESIDE)),
)  # fmt: skip
