"""`--fuse` finds the model inside wrappers, and says when it can do nothing."""

from __future__ import annotations

import copy

import pytest
import torch
from mmcv.cnn import ConvModule
from mmengine.hooks import EMAHook
from mmengine.model import BaseModel, BaseTTAModel, MMDistributedDataParallel
from mmengine.registry import MODEL_WRAPPERS
from mmengine.runner import Runner
from torch import Tensor, nn

from mmspatial.apis.errors import UserError
from mmspatial.apis.fuse import FuseHook, fuse


class Model(BaseModel):
    def __init__(self) -> None:
        super().__init__()
        self.layer = ConvModule(3, 4, 3, norm_cfg={'type': 'BN'})
        nn.init.uniform_(self.layer.bn.running_var, 0.5, 2.0)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs)


class Averaged(BaseTTAModel):
    def merge_preds(self, data_samples_list: list[Tensor]) -> list[Tensor]:
        return data_samples_list


def runner_with(model: nn.Module, *hooks: EMAHook | FuseHook) -> Runner:
    """Make what is there of a runner when it begins to test."""
    runner = Runner.__new__(Runner)
    runner.model, runner._hooks = model, []
    for hook in hooks:
        runner.register_hook(hook)
    return runner


@pytest.fixture
def distributed(monkeypatch: pytest.MonkeyPatch) -> type[MMDistributedDataParallel]:
    """Build the wrapper without processes."""
    monkeypatch.setattr(
        MMDistributedDataParallel,
        '__init__',
        lambda self, module: (nn.Module.__init__(self), setattr(self, 'module', module))[0],
    )
    return MMDistributedDataParallel


def test_wrappers_stay(distributed: type[MMDistributedDataParallel]) -> None:
    model = Model().eval()
    x = torch.randn(1, 3, 5, 5)
    wrapper = distributed(Averaged(module=copy.deepcopy(model)))
    runner = runner_with(wrapper, FuseHook())
    runner.call_hook('before_test_epoch')
    assert runner.model is wrapper
    assert isinstance(wrapper.module, Averaged)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in wrapper.modules())
    torch.testing.assert_close(wrapper.module.module(x), model(x))


def test_averaged_weights_are_folded() -> None:
    model = Model().eval()
    averaged = EMAHook()
    runner = runner_with(model, FuseHook(), averaged)
    averaged.before_run(runner)
    wanted = averaged.ema_model.module
    nn.init.ones_(wanted.layer.conv.weight)
    x = torch.randn(1, 3, 5, 5)
    expected = wanted.eval()(x)
    runner.call_hook('before_test_epoch')
    torch.testing.assert_close(runner.model(x), expected)


def test_models_that_cannot_be_folded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fuse(nn.Linear(2, 2))
    assert 'warning: --fuse: Linear has nothing to fold' in capsys.readouterr().err

    monkeypatch.setattr('mmcv.cnn.fuse_conv_bn', lambda module: module.no_such_thing)
    with pytest.raises(UserError, match=r'Model does not take --fuse.*no_such_thing'):
        fuse(Model().eval())

    monkeypatch.setitem(MODEL_WRAPPERS.module_dict, 'Model', Model)
    with pytest.raises(UserError, match='Model divides them'):
        fuse(Model().eval())
