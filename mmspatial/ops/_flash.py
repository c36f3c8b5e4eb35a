"""The Triton attention loop, once: forward and backward, with the bias of an op plugged in.

::

    O = softmax(scale · Q Kᵀ + B) V

An op brings a `Bias`: a small Triton function that computes a tile of B, and others for its
derivatives. Nothing of size ``L x L`` is stored, and nothing is added up by atomics: sums over
keys belong to the kernel whose programs own queries, sums over queries to the one whose programs
own keys. Short groups share a tile, several per program: then all keys of a query are in its tile,
and one kernel makes all gradients.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # Only `why_not` is of use then.
    triton = tl = None

# Numbers that change from call to call without a need for another kernel.
_SIZES = ('num_heads', 'num_groups', 'length', 'num_prefix')


def jit(function: Any) -> Any:
    """Make a Triton function where Triton is installed."""
    return triton.jit(function, do_not_specialize=_SIZES) if triton else function


class Bias(NamedTuple):
    """What an op adds to the loop, as Triton functions of ``(query, key, dy, dx, OPTION)``.

    ``query`` and ``key`` are tuples with what each of the op's parameters holds for the tokens,
    in float32, shaped such that they broadcast with the offsets ``dy`` and ``dx`` between the
    tokens' positions to a tile.

    Args:
        value: Returns B in two factors: one per query or head, and a tile.
        query_terms: Returns a tuple of tiles. The sum of each over the keys, weighted by the
            gradient of B, is what the op's gradients are made of. None for none.
        key_terms: The same for sums over the queries.
        num_query_sums: Tiles that ``query_terms`` returns.
        num_key_sums: Tiles that ``key_terms`` returns.
        option: What else the functions need to know; each value compiles kernels of its own.
    """

    value: Any
    query_terms: Any = None
    key_terms: Any = None
    num_query_sums: int = 0
    num_key_sums: int = 0
    option: Any = None


class Tiles(NamedTuple):
    """How a kernel cuts its work.

    Args:
        rows: Tokens that a program owns: queries in the forward and dq kernels, keys in dk/dv.
        steps: Tokens of the other kind in a step of its loop.
        num_warps: Warps of a program.
        num_stages: Steps whose loads are in flight.
        registers: Registers that a thread may take; None leaves it to the compiler.
    """

    rows: int
    steps: int
    num_warps: int
    num_stages: int
    registers: int | None = None


class Plan(NamedTuple):
    """The tiles of each kernel; those of the last two fields hold whole groups."""

    forward: Tiles
    backward_q: Tiles
    backward_kv: Tiles
    whole_forward: Tiles
    whole_backward: Tiles


@jit
def _place(
    num_heads: int, num_groups: int, length: int, BLOCK: tl.constexpr, ONE_TILE: tl.constexpr
) -> tl.tuple:
    """Find this program's place (batch element, head, first group), and its first token."""
    if ONE_TILE:
        step = BLOCK // length
        num_tiles = 1
    else:
        step = 1
        num_tiles = tl.cdiv(length, BLOCK)
    num_sets = tl.cdiv(num_groups, step)
    program = tl.program_id(0)
    start = program % num_tiles * BLOCK
    group = program // num_tiles % num_sets * step
    program = program // num_tiles // num_sets
    # 64 bits, for tensors of more than 2^31 numbers.
    batch, head = (program // num_heads).to(tl.int64), (program % num_heads).to(tl.int64)
    return (batch, group.to(tl.int64), head), start


@jit
def _tokens(
    place: tl.tuple,
    start: tl.tensor,
    num_groups: int,
    length: int,
    BLOCK: tl.constexpr,
    ONE_TILE: tl.constexpr,
) -> tl.tuple:
    """List a tile's tokens: group, counted from the place's; index; whether it exists."""
    o_tile = tl.arange(0, BLOCK)
    if ONE_TILE:
        o_group = o_tile // length
        o_token = o_tile % length
        m_token = o_tile < tl.minimum(BLOCK // length, num_groups - place[1]) * length
    else:
        o_group = tl.zeros_like(o_tile)
        o_token = start + o_tile
        m_token = o_token < length
    return o_group, o_token, m_token


@jit
def _rows(x: tl.tuple, place: tl.tuple, tokens: tl.tuple) -> tl.tensor:
    """Point at tokens of a tensor ``(B, G, M, L, ...)``, given as a pointer and its strides."""
    pointer, strides = x
    pointer += place[0] * strides[0] + place[1] * strides[1] + place[2] * strides[2]
    return pointer + tokens[0].to(tl.int64) * strides[1] + tokens[1].to(tl.int64) * strides[3]


@jit
def _load(
    x: tl.tuple,
    place: tl.tuple,
    tokens: tl.tuple,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    MASKED: tl.constexpr,
) -> tl.tensor:
    """Load ``(tokens, BLOCK)``: zeros for tokens that do not exist and beyond the width."""
    o_width = tl.arange(0, BLOCK)
    p_tile = _rows(x, place, tokens)[:, None] + o_width[None, :] * x[1][4]
    m_row, m_width = tokens[2][:, None], (o_width < WIDTH)[None, :]
    if MASKED and WIDTH < BLOCK:
        b_tile = tl.load(p_tile, m_row & m_width, 0.0)
    elif MASKED:
        b_tile = tl.load(p_tile, m_row, 0.0)
    elif WIDTH < BLOCK:
        b_tile = tl.load(p_tile, m_width, 0.0)
    else:
        b_tile = tl.load(p_tile)
    return b_tile


@jit
def _load_row(
    x: tl.tuple, place: tl.tuple, tokens: tl.tuple, OTHER: tl.constexpr, MASKED: tl.constexpr
) -> tl.tensor:
    """Load a number per token; ``OTHER`` for tokens that do not exist."""
    p_row = _rows(x, place, tokens)
    return tl.load(p_row, tokens[2], OTHER) if MASKED else tl.load(p_row)


@jit
def _store(
    x: tl.tuple,
    place: tl.tuple,
    tokens: tl.tuple,
    b_tile: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Store ``(tokens, BLOCK)`` where tokens exist and within the width."""
    o_width = tl.arange(0, BLOCK)
    p_tile = _rows(x, place, tokens)[:, None] + o_width[None, :] * x[1][4]
    tl.store(p_tile, b_tile, tokens[2][:, None] & (o_width < WIDTH)[None, :])


@jit
def _store_sums(x: tl.tuple, place: tl.tuple, tokens: tl.tuple, sums: tl.tuple) -> None:
    """Store a tuple of numbers per token, side by side."""
    for i in tl.static_range(len(sums)):
        tl.store(_rows(x, place, tokens) + i, sums[i], tokens[2])


@jit
def _attended(mask: tl.tuple, place: tl.tuple, tokens: tl.tuple) -> tl.tuple:
    """Take keys that the key mask leaves out for tokens that do not exist."""
    m_token = tokens[2]
    if mask is not None:
        m_token = m_token & (tl.load(_rows(mask, place, tokens), m_token, 0) != 0)
    return tokens[0], tokens[1], m_token


@jit
def _prior(
    parameters: tl.tuple,
    positions: tl.tuple,
    place: tl.tuple,
    tokens: tl.tuple,
    num_prefix: int,
    AXIS: tl.constexpr,
) -> tl.tuple:
    """Load what the bias asks of tokens, shaped to broadcast along ``AXIS``.

    Returns:
        The group, whether the token has a position, its row, its column, the op's parameters.
    """
    o_group, o_token, m_token = tokens
    o_grid = o_token - num_prefix
    m_grid = m_token & (o_grid >= 0)
    on_grid = (o_group, o_grid, m_grid)
    p_row = _rows(positions, place, on_grid)
    b_y = tl.load(p_row, m_grid, 0.0)
    b_x = tl.load(p_row + positions[1][4], m_grid, 0.0)
    values = ()
    for i in tl.static_range(len(parameters)):
        pointer, strides = parameters[i]
        if len(strides) == 1:
            value = tl.load(pointer + place[2] * strides[0]).to(tl.float32)
        else:
            value = tl.load(_rows(parameters[i], place, on_grid), m_grid, 0.0).to(tl.float32)
            value = tl.expand_dims(value, AXIS)
        values += (value,)
    o_group, m_grid = tl.expand_dims(o_group, AXIS), tl.expand_dims(m_grid, AXIS)
    return o_group, m_grid, tl.expand_dims(b_y, AXIS), tl.expand_dims(b_x, AXIS), values


@jit
def _logits(
    b_product: tl.tensor,
    scale: float,
    query: tl.tuple,
    key: tl.tuple,
    m_key: tl.tensor,
    BIAS: tl.constexpr,
    OPTION: tl.constexpr,
    HAS_PREFIX: tl.constexpr,
    ONE_TILE: tl.constexpr,
    MASKED: tl.constexpr,
) -> tl.tensor:
    """Compute a tile of ``Q Kᵀ + B / scale``, -inf where a query must not attend.

    In these units ``scale`` takes no operation of its own: the exponential multiplies anyway.
    """
    group_i, m_i, y_i, x_i, values_i = query
    group_j, m_j, y_j, x_j, values_j = key
    rate, b_bias = BIAS(values_i, values_j, y_i - y_j, x_i - x_j, OPTION)
    if HAS_PREFIX:
        b_bias = tl.where(m_i & m_j, b_bias, 0.0)
    rate = tl.broadcast_to(rate * (1.0 / scale), b_bias.shape)
    # Not as a plain sum: that would make B the start of the product, loaded where it is slow.
    b_logits = tl.fma(rate, b_bias, b_product)
    if ONE_TILE:
        b_logits = tl.where(m_key & (group_i == group_j), b_logits, float('-inf'))
    elif MASKED:
        b_logits = tl.where(m_key, b_logits, float('-inf'))
    return b_logits


@jit
def _add_sums(
    sums: tl.tuple,
    b_ds: tl.tensor,
    query: tl.tuple,
    key: tl.tuple,
    TERMS: tl.constexpr,
    OPTION: tl.constexpr,
    HAS_PREFIX: tl.constexpr,
    AXIS: tl.constexpr,
) -> tl.tuple:
    """Add the sums along ``AXIS`` of an op's terms, weighted by the gradient of B."""
    _, m_i, y_i, x_i, values_i = query
    _, m_j, y_j, x_j, values_j = key
    if HAS_PREFIX:
        b_ds = tl.where(m_i & m_j, b_ds, 0.0)
    terms = TERMS(values_i, values_j, y_i - y_j, x_i - x_j, OPTION)
    added = ()
    for i in tl.static_range(len(sums)):
        added += (sums[i] + tl.sum(b_ds * terms[i], AXIS),)
    return added


@jit
def _zeros(COUNT: tl.constexpr, BLOCK: tl.constexpr) -> tl.tuple:
    """Start a tuple of sums."""
    sums = ()
    for _ in tl.static_range(COUNT):
        sums += (tl.zeros((BLOCK,), tl.float32),)
    return sums


@jit
def forward_kernel(
    q: tl.tuple,
    k: tl.tuple,
    v: tl.tuple,
    parameters: tl.tuple,
    positions: tl.tuple,
    mask: tl.tuple,
    out: tl.tuple,
    lse: tl.tuple,
    scale: float,
    num_heads: int,
    num_groups: int,
    length: int,
    num_prefix: int,
    D: tl.constexpr,
    E: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
    ONE_TILE: tl.constexpr,
    MASKED: tl.constexpr,
    HAS_PREFIX: tl.constexpr,
    BIAS: tl.constexpr,
    OPTION: tl.constexpr,
) -> None:
    """Attend with a tile of queries, over their keys."""
    LOG2E: tl.constexpr = 1.4426950408889634
    to_base_2 = scale * LOG2E
    place, start = _place(num_heads, num_groups, length, ROWS, ONE_TILE)
    queries = _tokens(place, start, num_groups, length, ROWS, ONE_TILE)
    query = _prior(parameters, positions, place, queries, num_prefix, 1)
    b_q = _load(q, place, queries, D, BLOCK_D, True)

    b_max = tl.full((ROWS,), float('-inf'), tl.float32)
    b_sum = tl.zeros((ROWS,), tl.float32)
    b_out = tl.zeros((ROWS, BLOCK_E), tl.float32)
    for step in range(0, STEPS if ONE_TILE else length, STEPS):
        keys = _tokens(place, step, num_groups, length, STEPS, ONE_TILE)
        keys = _attended(mask, place, keys)
        key = _prior(parameters, positions, place, keys, num_prefix, 0)
        b_k = _load(k, place, keys, D, BLOCK_D, MASKED)
        b_product = tl.dot(b_q, tl.trans(b_k), input_precision='ieee')
        b_logits = _logits(
            b_product, scale, query, key, keys[2][None, :], BIAS, OPTION, HAS_PREFIX, ONE_TILE,
            MASKED,
        )  # fmt: skip

        b_new = tl.maximum(b_max, tl.max(b_logits, 1))
        b_shift = b_new * to_base_2
        if MASKED:  # Without any key so far the maximum is -inf, and -inf - -inf no number.
            b_shift = tl.where(b_new == float('-inf'), 0.0, b_shift)
        b_p = tl.exp2(b_logits * to_base_2 - b_shift[:, None])
        b_kept = tl.exp2(b_max * to_base_2 - b_shift)
        b_sum = b_sum * b_kept + tl.sum(b_p, 1)
        b_max = b_new
        b_v = _load(v, place, keys, E, BLOCK_E, MASKED)
        b_out = b_out * b_kept[:, None]
        b_out = tl.dot(b_p.to(b_v.dtype), b_v, b_out, input_precision='ieee')

    m_empty = b_sum == 0.0
    b_sum = tl.where(m_empty, 1.0, b_sum)
    b_out = b_out / b_sum[:, None]
    b_lse = tl.where(m_empty, float('inf'), b_max * scale + tl.log2(b_sum) / LOG2E)
    _store(out, place, queries, b_out, E, BLOCK_E)
    tl.store(_rows(lse, place, queries), b_lse, queries[2])


@jit
def backward_q_kernel(
    q: tl.tuple,
    k: tl.tuple,
    v: tl.tuple,
    parameters: tl.tuple,
    positions: tl.tuple,
    mask: tl.tuple,
    grad: tl.tuple,
    lse: tl.tuple,
    delta: tl.tuple,
    dk: tl.tuple,
    dv: tl.tuple,
    key_sums: tl.tuple,
    out: tl.tuple,
    dq: tl.tuple,
    query_sums: tl.tuple,
    scale: float,
    num_heads: int,
    num_groups: int,
    length: int,
    num_prefix: int,
    D: tl.constexpr,
    E: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
    ONE_TILE: tl.constexpr,
    MASKED: tl.constexpr,
    HAS_PREFIX: tl.constexpr,
    BIAS: tl.constexpr,
    QUERY_TERMS: tl.constexpr,
    NUM_QUERY_SUMS: tl.constexpr,
    KEY_TERMS: tl.constexpr,
    NUM_KEY_SUMS: tl.constexpr,
    OPTION: tl.constexpr,
) -> None:
    """Compute dQ of a tile of queries, the op's sums over their keys, and rowsum(dO ∘ O).

    Where the tile holds all their keys, also what `backward_kv_kernel` computes.
    """
    LOG2E: tl.constexpr = 1.4426950408889634
    to_base_2 = scale * LOG2E
    place, start = _place(num_heads, num_groups, length, ROWS, ONE_TILE)
    queries = _tokens(place, start, num_groups, length, ROWS, ONE_TILE)
    query = _prior(parameters, positions, place, queries, num_prefix, 1)
    b_q = _load(q, place, queries, D, BLOCK_D, True)
    b_grad = _load(grad, place, queries, E, BLOCK_E, True)
    b_out = _load(out, place, queries, E, BLOCK_E, True)
    b_delta = tl.sum(b_out.to(tl.float32) * b_grad.to(tl.float32), 1)
    # With a log-sum-exp of +inf queries that do not exist have weights of 0.
    b_lse = _load_row(lse, place, queries, float('inf'), True) * LOG2E

    b_dq = tl.zeros((ROWS, BLOCK_D), tl.float32)
    sums = _zeros(NUM_QUERY_SUMS, ROWS)
    for step in range(0, STEPS if ONE_TILE else length, STEPS):
        tokens = _tokens(place, step, num_groups, length, STEPS, ONE_TILE)
        keys = _attended(mask, place, tokens)
        key = _prior(parameters, positions, place, keys, num_prefix, 0)
        b_k = _load(k, place, keys, D, BLOCK_D, MASKED)
        b_v = _load(v, place, keys, E, BLOCK_E, MASKED)
        b_product = tl.dot(b_q, tl.trans(b_k), input_precision='ieee')
        b_logits = _logits(
            b_product, scale, query, key, keys[2][None, :], BIAS, OPTION, HAS_PREFIX, ONE_TILE,
            MASKED,
        )  # fmt: skip
        b_p = tl.exp2(b_logits * to_base_2 - b_lse[:, None])
        b_dp = tl.dot(b_grad, tl.trans(b_v), input_precision='ieee')
        b_ds = b_p * (b_dp - b_delta[:, None])
        b_dq = tl.dot(b_ds.to(b_k.dtype), b_k, b_dq, input_precision='ieee')
        if NUM_QUERY_SUMS > 0:
            sums = _add_sums(sums, b_ds, query, key, QUERY_TERMS, OPTION, HAS_PREFIX, 1)
        if ONE_TILE:
            b_dv = tl.dot(tl.trans(b_p.to(b_grad.dtype)), b_grad, input_precision='ieee')
            _store(dv, place, tokens, b_dv, E, BLOCK_E)
            b_dk = tl.dot(tl.trans(b_ds.to(b_q.dtype)), b_q, input_precision='ieee') * scale
            _store(dk, place, tokens, b_dk, D, BLOCK_D)
            if NUM_KEY_SUMS > 0:
                col_sums = _zeros(NUM_KEY_SUMS, STEPS)
                col_sums = _add_sums(col_sums, b_ds, query, key, KEY_TERMS, OPTION, HAS_PREFIX, 0)
                _store_sums(key_sums, place, tokens, col_sums)

    _store(dq, place, queries, b_dq * scale, D, BLOCK_D)
    _store_sums(query_sums, place, queries, sums)
    if not ONE_TILE:
        tl.store(_rows(delta, place, queries), b_delta, queries[2])


@jit
def backward_kv_kernel(
    q: tl.tuple,
    k: tl.tuple,
    v: tl.tuple,
    parameters: tl.tuple,
    positions: tl.tuple,
    mask: tl.tuple,
    grad: tl.tuple,
    lse: tl.tuple,
    delta: tl.tuple,
    dk: tl.tuple,
    dv: tl.tuple,
    key_sums: tl.tuple,
    scale: float,
    num_heads: int,
    num_groups: int,
    length: int,
    num_prefix: int,
    D: tl.constexpr,
    E: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
    MASKED: tl.constexpr,
    HAS_PREFIX: tl.constexpr,
    BIAS: tl.constexpr,
    KEY_TERMS: tl.constexpr,
    NUM_KEY_SUMS: tl.constexpr,
    OPTION: tl.constexpr,
) -> None:
    """Compute dK and dV of a tile of keys, and the op's sums over their queries."""
    LOG2E: tl.constexpr = 1.4426950408889634
    to_base_2 = scale * LOG2E
    place, start = _place(num_heads, num_groups, length, ROWS, False)
    tokens = _tokens(place, start, num_groups, length, ROWS, False)
    keys = _attended(mask, place, tokens)
    key = _prior(parameters, positions, place, keys, num_prefix, 1)
    m_key = keys[2][:, None]
    b_k = _load(k, place, keys, D, BLOCK_D, True)
    b_v = _load(v, place, keys, E, BLOCK_E, True)

    b_dk = tl.zeros((ROWS, BLOCK_D), tl.float32)
    b_dv = tl.zeros((ROWS, BLOCK_E), tl.float32)
    sums = _zeros(NUM_KEY_SUMS, ROWS)
    for step in range(0, length, STEPS):
        queries = _tokens(place, step, num_groups, length, STEPS, False)
        query = _prior(parameters, positions, place, queries, num_prefix, 0)
        b_q = _load(q, place, queries, D, BLOCK_D, MASKED)
        b_grad = _load(grad, place, queries, E, BLOCK_E, MASKED)
        b_lse = _load_row(lse, place, queries, float('inf'), MASKED) * LOG2E
        b_delta = _load_row(delta, place, queries, 0.0, MASKED)
        b_product = tl.dot(b_k, tl.trans(b_q), input_precision='ieee')
        b_logits = _logits(
            b_product, scale, query, key, m_key, BIAS, OPTION, HAS_PREFIX, False, mask is not None
        )
        b_p = tl.exp2(b_logits * to_base_2 - b_lse[None, :])
        b_dv = tl.dot(b_p.to(b_grad.dtype), b_grad, b_dv, input_precision='ieee')
        b_dp = tl.dot(b_v, tl.trans(b_grad), input_precision='ieee')
        b_ds = b_p * (b_dp - b_delta[None, :])
        b_dk = tl.dot(b_ds.to(b_q.dtype), b_q, b_dk, input_precision='ieee')
        if NUM_KEY_SUMS > 0:
            sums = _add_sums(sums, b_ds, query, key, KEY_TERMS, OPTION, HAS_PREFIX, 1)

    _store(dk, place, tokens, b_dk * scale, D, BLOCK_D)
    _store(dv, place, tokens, b_dv, E, BLOCK_E)
    _store_sums(key_sums, place, tokens, sums)


def _tile(*tiles: tuple[int, ...]) -> Plan:
    """Write a plan down in one line."""
    return Plan(*(Tiles(*t) for t in tiles))


# By architecture and padded head width, such that no kernel spills registers, whatever the bias,
# the mask and the prefix: `tests/ops/test_triton_compile.py` holds them to that.
_PLANS = {
    'hopper': {
        32: _tile((128, 64, 8, 3), (64, 64, 4, 2), (64, 64, 4, 2), (64, 64, 4, 1), (64, 64, 4, 1)),
        64: _tile((128, 64, 8, 3), (64, 32, 4, 2), (64, 32, 4, 2), (64, 64, 4, 1), (64, 64, 8, 1)),
        128: _tile((128, 64, 8, 2), (64, 32, 8, 2), (64, 32, 8, 2), (64, 64, 4, 1), (64, 64, 8, 1)),
    },
    'ampere': {
        32: _tile((128, 64, 8, 3), (64, 32, 4, 2), (64, 32, 4, 2), (64, 64, 4, 1), (64, 64, 8, 1)),
        64: _tile((128, 64, 8, 3), (64, 32, 8, 2), (64, 32, 8, 2), (64, 64, 4, 1), (32, 32, 4, 1)),
        128: _tile((128, 32, 8, 2), (32, 32, 4, 2), (64, 32, 8, 2), (64, 64, 4, 1), (64, 64, 8, 1)),
    },
    'other': {
        32: _tile((64, 64, 4, 2), (64, 32, 4, 2), (64, 32, 4, 2), (64, 64, 4, 1), (64, 64, 8, 1)),
        64: _tile((64, 64, 4, 2), (64, 32, 8, 2), (64, 32, 8, 2), (64, 64, 4, 1), (32, 32, 4, 1)),
        128: _tile((64, 32, 4, 2), (32, 32, 4, 2), (64, 32, 8, 2), (64, 64, 4, 1), (64, 64, 8, 1)),
    },
    # Exact products do not run on tensor cores; they hold all their inputs in registers.
    'float32': {
        32: _tile(*[(32, 32, 8, 1, 128)] * 3, *[(32, 32, 8, 1)] * 2),
        64: _tile(
            (32, 32, 8, 1, 128), (32, 16, 8, 1, 128), (32, 16, 8, 1, 128), *[(32, 32, 8, 1)] * 2
        ),
        128: _tile(
            (32, 16, 8, 1, 128), (16, 32, 8, 1, 128), (32, 16, 8, 1, 128), *[(16, 16, 8, 1)] * 2
        ),
    },
}  # fmt: skip
_MAX_WIDTH = 128
# The first that takes tuples of tensors and functions in the way the kernels need it.
_MIN_TRITON = (3, 4)


_INTERPRETED = triton is not None and not isinstance(forward_kernel, triton.runtime.JITFunction)


def is_interpreted() -> bool:
    """Say whether kernels run in Triton's interpreter, which takes tensors on the CPU."""
    return _INTERPRETED


def why_not(q: Tensor, v: Tensor) -> str | None:
    """Say why the kernels cannot run on these tensors.

    Args:
        q: Queries ``(..., L, D)``.
        v: Values ``(..., L, E)``.

    Returns:
        A short reason, or None where they can.
    """
    if triton is None:
        return 'triton is not installed'
    if tuple(map(int, triton.__version__.split('.')[:2])) < _MIN_TRITON:
        return f'triton {triton.__version__} is older than {".".join(map(str, _MIN_TRITON))}'
    if q.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f'q is {q.dtype}: it takes float32, float16 and bfloat16'
    if v.dtype != q.dtype:
        return f'q is {q.dtype} and v {v.dtype}: it takes one dtype'
    width = max(q.shape[-1], v.shape[-1])
    if width > _MAX_WIDTH:
        return f'head width {width} > {_MAX_WIDTH}'
    if is_interpreted():
        return "Triton's interpreter miscomputes bfloat16" if q.dtype == torch.bfloat16 else None
    if q.device.type != 'cuda':
        return f'q is on {q.device.type}: it needs a CUDA or ROCm device'
    # The one question about a device whose answer `torch.compile` takes for a constant.
    if torch.version.hip is None and torch.cuda.get_device_properties(q.device).major < 8:
        return 'the GPU is too old: Triton needs compute capability 8.0'
    return None


@functools.cache
def architecture(device: torch.device) -> str:
    """Name the kind of GPU that the table of tiles knows; anything unknown is ``'other'``."""
    if device.type != 'cuda' or torch.version.hip is not None:
        return 'other'
    # 8.6, 8.9 and 12.x have 99 KiB of shared memory, 8.0 has 163 KiB, 9.0 and 10.x 227 KiB.
    return {(8, 0): 'ampere', (9, 0): 'hopper'}.get(
        torch.cuda.get_device_capability(device), 'other'
    )


def _plan(q: Tensor, v: Tensor) -> Plan:
    """Look up the tiles for tensors."""
    kind = 'float32' if q.dtype == torch.float32 else architecture(q.device)
    width = max(q.shape[-1], v.shape[-1])
    return next(plan for limit, plan in _PLANS[kind].items() if width <= limit)


def _strided(x: Tensor | None) -> tuple[Tensor, tuple[int, ...]] | None:
    """Pair a tensor with its strides, as the kernels take it."""
    return None if x is None else (x, x.stride())


def _launch(
    kernel: Any,
    tiles: Tiles,
    one_tile: bool,
    q: Tensor,
    v: Tensor,
    tensors: Sequence[Any],
    scale: float,
    num_prefix: int,
    has_mask: bool,
    **constants: Any,
) -> None:
    """Run a kernel over all tiles."""
    batch, num_groups, num_heads, length, width = q.shape
    if one_tile:
        programs = batch * num_heads * -(-num_groups // (tiles.rows // length))
    else:
        programs = batch * num_heads * num_groups * -(-length // tiles.rows)
    if tiles.registers and torch.version.hip is None:
        constants['maxnreg'] = tiles.registers
    with torch.cuda.device(q.device) if q.is_cuda else contextlib.nullcontext():
        kernel[(programs,)](
            *tensors, scale, num_heads, num_groups, length, num_prefix,
            D=width, E=v.shape[-1],
            BLOCK_D=max(16, triton.next_power_of_2(width)),
            BLOCK_E=max(16, triton.next_power_of_2(v.shape[-1])),
            ROWS=tiles.rows, STEPS=tiles.steps,
            MASKED=has_mask or one_tile or length % tiles.steps != 0,
            HAS_PREFIX=num_prefix > 0,
            num_warps=tiles.num_warps, num_stages=tiles.num_stages, **constants,
        )  # fmt: skip


def _inputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    params: Sequence[Tensor],
    positions: Tensor,
    key_mask: Tensor | None,
) -> list[Any]:
    """Bring what all kernels take to the axes ``(B, G, M, tokens)``."""
    batch, groups, heads, length, _ = q.shape
    positions = positions[None, :, None].expand(batch, groups, heads, -1, -1)
    if key_mask is not None:
        key_mask = key_mask.unsqueeze(-2).expand(batch, groups, heads, length)
    return [
        *map(_strided, (q, k, v)), tuple(map(_strided, params)),
        _strided(positions), _strided(key_mask),
    ]  # fmt: skip


def _above_zero(q: Tensor, scale: float) -> tuple[Tensor, float, int]:
    """Give the sign of ``scale`` to ``q``: the kernels divide by it, and look for maxima."""
    sign = (scale > 0) - (scale < 0)
    return (q, scale, 1) if sign > 0 else (q * sign, abs(scale) or 1.0, sign)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    params: Sequence[Tensor],
    positions: Tensor,
    key_mask: Tensor | None,
    bias: Bias,
    scale: float,
    num_prefix: int,
) -> tuple[Tensor, Tensor]:
    """Compute attention with a bias.

    Args:
        q: Queries ``(B, G, M, L, D)``; like all other tensors in any strides.
        k: Keys, shaped like ``q``.
        v: Values ``(B, G, M, L, E)``.
        params: What the bias is made from, each ``(B, G, M, n)`` or ``(M,)``.
        positions: ``(G or 1, n, 2)``.
        key_mask: Bool, broadcastable to ``(B, G, L)``, or None.
        bias: The bias of the op.
        scale: Factor on the products.
        num_prefix: P = L - n tokens in front without a position.

    Returns:
        The output, laid out like ``v``, and the log-sum-exp ``(B, G, M, L)`` of the logits,
        +inf for queries without any key.
    """
    q, scale, _ = _above_zero(q, scale)
    out = torch.empty_like(v)
    lse = q.new_empty(q.shape[:-1], dtype=torch.float32)
    if lse.numel():
        plan = _plan(q, v)
        one_tile = q.shape[-2] <= plan.whole_forward.rows
        _launch(
            forward_kernel, plan.whole_forward if one_tile else plan.forward, one_tile, q, v,
            [*_inputs(q, k, v, params, positions, key_mask), *map(_strided, (out, lse))],
            scale, num_prefix, key_mask is not None,
            ONE_TILE=one_tile, BIAS=bias.value, OPTION=bias.option,
        )  # fmt: skip
    return out, lse


def attend_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    params: Sequence[Tensor],
    positions: Tensor,
    key_mask: Tensor | None,
    out: Tensor,
    lse: Tensor,
    bias: Bias,
    scale: float,
    num_prefix: int,
    bias_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients of `attend`; without ``bias_grad`` no sums.

    Returns:
        Those of ``q``, ``k`` and ``v``, each laid out like its tensor. Then what the terms of the
        bias sum up to, over the keys of each query and over the queries of each key:
        ``(B, G, M, n, number of terms)`` in float32.
    """
    if not bias_grad:
        bias = Bias(bias.value, option=bias.option)
    dq, dk, dv = map(torch.empty_like, (q, k, v))
    q, scale, sign = _above_zero(q, scale)
    query_sums = lse.new_empty(*lse.shape, bias.num_query_sums)
    key_sums = lse.new_empty(*lse.shape, bias.num_key_sums)
    if lse.numel():
        plan = _plan(q, v)
        one_tile = q.shape[-2] <= plan.whole_backward.rows
        delta = None if one_tile else torch.empty_like(lse)
        tensors = [
            *_inputs(q, k, v, params, positions, key_mask),
            *map(_strided, (grad_out, lse, delta, dk, dv, key_sums)),
        ]
        functions = {
            'BIAS': bias.value, 'OPTION': bias.option,
            'KEY_TERMS': bias.key_terms, 'NUM_KEY_SUMS': bias.num_key_sums,
        }  # fmt: skip
        _launch(
            backward_q_kernel, plan.whole_backward if one_tile else plan.backward_q, one_tile,
            q, v, [*tensors, *map(_strided, (out, dq, query_sums))],
            scale, num_prefix, key_mask is not None, ONE_TILE=one_tile,
            QUERY_TERMS=bias.query_terms, NUM_QUERY_SUMS=bias.num_query_sums, **functions,
        )  # fmt: skip
        if not one_tile:
            # Keys that nobody attends to stand in rows of their own there.
            _launch(
                backward_kv_kernel, plan.backward_kv, False, q, v, tensors, scale, num_prefix,
                False, **functions,
            )  # fmt: skip
    if sign != 1:
        dq *= sign
    return dq, dk, dv, query_sums[..., num_prefix:, :], key_sums[..., num_prefix:, :]
