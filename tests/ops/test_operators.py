"""The fused ops as operators of PyTorch: registration, compilation, export, autocast."""

from __future__ import annotations

import pytest
import torch
from attention_cases import OPS, Case, make
from torch import Tensor, nn

from mmspatial.models.layers.layout import Columns
from mmspatial.ops import explain

EVERY_OP = pytest.mark.parametrize('op', OPS)


@pytest.mark.parametrize('case', [Case(prefix=2), Case(layout=Columns())], ids=['full', 'columns'])
@pytest.mark.parametrize('op', ['manhattan', 'gated', 'gaussian'])
def test_opcheck(op: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f'{op}_attention' if op != 'manhattan' else 'decay_attention'
    operator = getattr(torch.ops.mmspatial, name)
    calls = []

    class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
            if func is operator.default:
                calls.append(args)
            return func(*args, **(kwargs or {}))

    call, tensors = make(op, case, torch.float32)
    with Recorder():
        call(**tensors, impl='chunked')
    args = [a.detach().requires_grad_(a.is_floating_point()) if isinstance(a, Tensor) else a
            for a in calls[0]]  # fmt: skip
    positions = 5 if op != 'manhattan' else 4
    args[positions].requires_grad_(False)
    torch.library.opcheck(operator.default, tuple(args))


class Attends(nn.Module):
    """An op on a grid whose size the module does not know."""

    def __init__(self, op: str, impl: str) -> None:
        super().__init__()
        call, tensors = make(op, Case(batch=1, positions=(1, 1)), torch.float32)
        self.op, self.settings = call.func, {**call.keywords, 'impl': impl}
        self.bias = {n: t.detach() for n, t in tensors.items() if n not in 'qkv'}

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[1:3]
        q = x.flatten(1, 2).unflatten(-1, (2, 16)).transpose(1, 2)  # (B, M, N, D)
        bias = {
            name: t if t.dim() == 1 else t.expand(-1, -1, height * width, *t.shape[3:])
            for name, t in self.bias.items()
        }
        return self.op(q, q, q, **bias, **{**self.settings, 'positions': (height, width)})


@EVERY_OP
def test_compiles_into_one_graph_of_any_size(op: str) -> None:
    torch._dynamo.reset()
    module = Attends(op, 'chunked')
    compiled = torch.compile(module, fullgraph=True, backend='aot_eager', dynamic=True)
    for size in ((7, 9), (8, 5), (12, 15)):
        x = torch.randn(1, *size, 32, requires_grad=True)
        y = torch.randn(1, *size, 32, requires_grad=True)
        y.data.copy_(x.data)
        out, want = compiled(x), module(y)
        torch.testing.assert_close(out, want)
        out.square().sum().backward()
        want.square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)


@EVERY_OP
def test_export_takes_the_reference(op: str) -> None:
    x = torch.randn(1, 7, 9, 32)
    module = Attends(op, 'auto')
    program = torch.export.export(module, (x,))
    assert 'mmspatial' not in str(program.graph)
    torch.testing.assert_close(program.module()(x), module(x))


@EVERY_OP
def test_auto_names_what_it_took_and_why_not_another(op: str) -> None:
    call, tensors = make(op, Case(positions=(16, 16)), torch.float32)
    with explain() as decisions, torch.no_grad():
        call(**{name: t.detach() for name, t in tensors.items()})
    (decision,) = decisions
    assert decision.chosen == ('table' if op in ('manhattan', 'euclidean') else 'chunked')
    assert 'triton' in decision.passed_over
    with explain() as decisions:
        call(**{name: t.double() for name, t in tensors.items()})
    assert decisions[0].chosen == 'reference'
    assert 'double precision' in decisions[0].passed_over['chunked']


@EVERY_OP
@pytest.mark.parametrize('impl', ['reference', 'chunked'])
def test_autocast_leaves_dtypes_alone(op: str, impl: str) -> None:
    call, tensors = make(op, Case(), torch.float32)
    want = call(**tensors, impl=impl)
    with torch.autocast('cpu', torch.bfloat16):
        got = call(**tensors, impl=impl)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want)


@EVERY_OP
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision_is_as_good_as_the_reference(op: str, dtype: torch.dtype) -> None:
    case = Case(positions=(13, 15), scale=3.0)
    call, tensors = make(op, case, dtype)
    want = call(**{name: t.double() for name, t in tensors.items()}, impl='reference')
    error = {
        impl: (call(**tensors, impl=impl).double() - want).abs().max()
        for impl in ('reference', 'chunked')
    }
    assert error['chunked'] <= 2 * error['reference'] + 1e-5


@EVERY_OP
def test_gradcheck(op: str) -> None:
    call, tensors = make(op, Case(batch=1, width=4, positions=(2, 3), prefix=1))
    names = list(tensors)

    def function(*values: Tensor) -> Tensor:
        return call(**dict(zip(names, values, strict=True)), impl='chunked')

    assert torch.autograd.gradcheck(function, tuple(tensors.values()), fast_mode=True)


@EVERY_OP
def test_frozen_bias_has_no_gradient(op: str) -> None:
    call, tensors = make(op, Case(), torch.float32)
    bias = {n: t.detach() for n, t in tensors.items() if n not in 'qkv'}
    qkv = {n: tensors[n] for n in 'qkv'}
    call(**qkv, **bias, impl='chunked').sum().backward()
    frozen = tensors['q'].grad.clone()
    tensors['q'].grad = None
    call(**tensors, impl='chunked').sum().backward()
    torch.testing.assert_close(tensors['q'].grad, frozen)
    assert all(tensors[name].grad is not None for name in bias)


@EVERY_OP
def test_a_repeat_is_bitwise_the_same(op: str) -> None:
    call, tensors = make(op, Case(positions=(17, 20)), torch.float32)
    first, second = (
        torch.autograd.grad(call(**tensors, impl='chunked').square().sum(), tensors.values())
        for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@EVERY_OP
def test_forced_implementation_that_cannot_run_says_why(op: str) -> None:
    call, tensors = make(op, Case(positions=torch.rand(1, 15, 2)), torch.float32)
    call.keywords['positions'].requires_grad_()
    with pytest.raises(NotImplementedError, match=r"impl='chunked'.* no gradient for positions"):
        call(**tensors, impl='chunked')
