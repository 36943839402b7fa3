"""Compiles the attention of `attention.py` to machine code of this computer, with LLVM (the package llvmlite).

This file is optional: without it, only the setting `attention: compiled` is missing. Each separate operation of torch
reads and writes memory. Here one pass over memory computes scores, powers and sums. The formulas are those of
`attention.py`, and results differ from it by rounding. The rules:

* 16 lanes (heads and rows) are one vector of float32 numbers, and no operation mixes lanes. So the bits of a lane do
  not depend on the other lanes, on their number, or on the processor's registers;
* every operation is rounded correctly: sum, product, quotient, and x·y + z with one rounding (fma). LLVM may not
  reorder or combine operations. So all processors compute the same bits. Most x86 processors
  from before 2013 lack fma. On them this code is slower than torch;
* sums add channels and tokens in order, on one thread;
* powers of 2 have a relative error below 2e-7. They are 0 below 2^-126;
* machine code is made in each process, in memory, and is never stored.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeAlias

import torch
from llvmlite import binding, ir
from torch import Tensor

Value: TypeAlias = Any  # an operand of LLVM's language; llvmlite has no types

WIDEST_HEAD: Final = 8  # the code is written out for each channel of a head, so wider heads would take long to compile
_LANES: Final = 16
# At most this number of lanes of a copy is computed at once, so that their numbers stay in the processor's cache.
_AT_ONCE: Final = 512
# 2^x = 1 + Σ_i c_i·x^(i+1) for |x| ≤ 1/2, from interpolation at six Chebyshev points. Relative error 1e-8.
_POWERS: Final = (0.693147182, 0.240226507, 0.0555035695, 0.00961808302, 0.00133908633, 0.000154531634)
# Adding this number to x rounds x to a whole number n. The last bits of the sum are then n + 127, the exponent of 2^n.
_ROUNDER: Final = 1.5 * 2.0**23 + 127
_EXPONENT_PLACE: Final = 23  # of its last bit in a float32 number
_LOWEST_EXPONENT: Final = -126.0

_LONG, _FLOAT = ir.IntType(64), ir.FloatType()
_VECTOR, _BITS = ir.VectorType(_FLOAT, _LANES), ir.VectorType(ir.IntType(32), _LANES)
_FMA: Final = f"llvm.fma.v{_LANES}f32"
_FORWARD: Final = ("projections", "result", "kept", "lanes", "scores")
_BACKWARD: Final = ("projections", "result", "gradient", "kept", "found", "lanes", "sums")
_SIZES: Final = ("copies", "heads", "tokens", "batch", "parts", "part", "stride")


def attend(projections: Tensor, heads: int) -> tuple[Tensor, Callable[[Tensor], Tensor]] | None:
    """Compute attention, and return a function from the gradient of the result to the gradient of the projections.

    From (3·e, d, B) or (S, 3·e, d, B) to (e, d, B) or (S, e, d, B), as `attention.attend`. Return None if there is no
    code for these tensors: another type than float32, another device, no numbers, or heads wider than `WIDEST_HEAD`.
    """
    *stack, rows, tokens, batch = projections.shape
    width = rows // (3 * heads)
    # A subclass of Tensor can be without numbers, for example to estimate memory.
    is_plain = type(projections) is Tensor and projections.device.type == "cpu" and projections.dtype == torch.float32
    if not is_plain or not projections.numel() or not 1 <= width <= WIDEST_HEAD:
        return None
    projections, copies = projections.contiguous(), math.prod(stack)
    part = math.ceil(batch / math.ceil(batch / max(1, _AT_ONCE // heads)))
    parts = math.ceil(batch / part)
    # An odd number of vectors, because rows with a power of two would compete for the same places in the cache.
    stride = _LANES * (math.ceil(heads * part / _LANES) | 1)
    sizes = (copies, heads, tokens, batch, parts, part, stride)
    program = _compiled(width)
    result = projections.new_empty((*stack, heads * width, tokens, batch))
    kept = projections.new_empty((copies, parts, 2, tokens, stride))
    lanes, scores = projections.new_empty((3 * width, tokens, stride)), projections.new_empty((tokens, _LANES))
    program.forward(*_addresses(projections, result, kept, lanes, scores), *sizes)

    def backward(gradient: Tensor) -> Tensor:
        if gradient.shape != result.shape or gradient.dtype != result.dtype or gradient.device != result.device:
            raise ValueError(f"the gradient {tuple(gradient.shape)} of a result {tuple(result.shape)}")
        gradient, found = gradient.contiguous(), torch.empty_like(projections)
        lanes, sums = gradient.new_empty((5 * width, tokens, stride)), gradient.new_empty((2 * width, tokens, _LANES))
        program.backward(*_addresses(projections, result, gradient, kept, found, lanes, sums), *sizes)
        return found

    return result, backward


def _addresses(*tensors: Tensor) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


@dataclass(frozen=True)
class _Program:
    """Machine code for heads of one width, which exists as long as `engine`. It checks no size."""

    forward: Callable[..., None]
    backward: Callable[..., None]
    engine: Value


@cache
def _compiled(width: int) -> _Program:
    """Compile the two functions for heads of `width` channels, which takes about half a second."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    module = ir.Module("attention")
    module.triple = binding.get_process_triple()
    _write_forward(_Code(module, "forward", _FORWARD), width)
    _write_backward(_Code(module, "backward", _BACKWARD), width)
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    machine = binding.Target.from_triple(module.triple).create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten(), opt=3
    )
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(parsed, builder)
    engine = binding.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()

    def function(name: str, arrays: Sequence[str]) -> Callable[..., None]:
        kinds = [ctypes.c_void_p] * len(arrays) + [ctypes.c_int64] * len(_SIZES)
        return ctypes.CFUNCTYPE(None, *kinds)(engine.get_function_address(name))

    return _Program(function("forward", _FORWARD), function("backward", _BACKWARD), engine)


class _Loop:
    """A loop while its body is written: the number of the pass from 0, and values that each pass replaces."""

    def __init__(self, number: Value, values: list[Value]) -> None:
        self.number = number
        self.values = values  # in the body: before this pass; after the loop: of the last pass
        self.following = values  # the body sets the values of the next pass


class _Code:
    """Writes a function in LLVM's language. Its arguments are float32 arrays that do not overlap, and the sizes."""

    def __init__(self, module: Value, name: str, arrays: Sequence[str]) -> None:
        kinds = [ir.PointerType(_FLOAT)] * len(arrays) + [_LONG] * len(_SIZES)
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), name)
        for argument in function.args[: len(arrays)]:
            argument.add_attribute("noalias")
        self.argument = dict(zip((*arrays, *_SIZES), function.args, strict=True))
        self.build = ir.IRBuilder(function.append_basic_block())
        self._fma = module.globals.get(_FMA) or ir.Function(module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), _FMA)

    @contextmanager
    def loop(self, passes: Value, values: Sequence[Value] = ()) -> Iterator[_Loop]:
        """Repeat the body of the `with` block. `values` are the values before the first pass."""
        build, before = self.build, self.build.block
        head, body, after = (build.append_basic_block() for _ in range(3))
        build.branch(head)
        build.position_at_end(head)
        number, *changing = (build.phi(value.type) for value in (passes, *values))
        build.cbranch(build.icmp_signed("<", number, passes), body, after)
        build.position_at_end(body)
        loop = _Loop(number, changing)
        yield loop
        following = (build.add(number, _LONG(1)), *loop.following)
        for each, first, next_value in zip((number, *changing), (_LONG(0), *values), following, strict=True):
            each.add_incoming(first, before)
            each.add_incoming(next_value, build.block)
        build.branch(head)
        build.position_at_end(after)

    def index(self, first: Value, *rest: Value) -> Value:
        """Return the index of an element: its place in the first axis, then the size and the place of each axis."""
        for size, place in zip(rest[::2], rest[1::2], strict=True):
            first = self.build.add(self.build.mul(first, size), place)
        return first

    def at(self, array: Value, index: Value, kind: Value = _FLOAT) -> Value:
        """Return the address of a number, or of the vector that starts there."""
        return self.build.bitcast(self.build.gep(array, [index]), ir.PointerType(kind))

    def load(self, array: Value, index: Value, kind: Value = _VECTOR) -> Value:
        """Return a number, or a vector."""
        return self.build.load(self.at(array, index, kind), align=4)

    def store(self, value: Value, array: Value, index: Value) -> None:
        """Write a number, or a vector."""
        self.build.store(value, self.at(array, index, value.type), align=4)

    def plus_product(self, start: Value, left: Value, right: Value) -> Value:
        """Return start + left·right with one rounding."""
        return self.build.call(self._fma, [left, right, start])

    def sum_of_products(self, left: Sequence[Value], right: Sequence[Value]) -> Value:
        """Return Σ_c left[c]·right[c]."""
        total = self.build.fmul(left[0], right[0])
        for one, other in zip(left[1:], right[1:], strict=True):
            total = self.plus_product(total, one, other)
        return total

    def power_of_two(self, exponent: Value) -> Value:
        """Return 2^x for x ≤ 0, as 2^n · 2^(x - n) with the nearest whole number n."""
        build = self.build
        shifted = build.fadd(exponent, _vector(_ROUNDER))
        rest = build.fsub(exponent, build.fsub(shifted, _vector(_ROUNDER)))
        power = _vector(_POWERS[-1])
        for factor in (*_POWERS[-2::-1], 1.0):
            power = self.plus_product(_vector(factor), power, rest)
        whole = build.shl(build.bitcast(shifted, _BITS), _BITS([_EXPONENT_PLACE] * _LANES))
        power = build.fmul(power, build.bitcast(whole, _VECTOR))
        # NaN is not below any number, so it stays NaN.
        return build.select(build.fcmp_ordered("<", exponent, _vector(_LOWEST_EXPONENT)), _vector(0.0), power)


def _vector(number: float) -> Value:
    return _VECTOR([number] * _LANES)


class _Part:
    """Some rows of one copy while the code is written. Lanes are heads x these rows.

    Arrays are (S, channels·heads, d, B) outside, and (channels, d, stride) in the scratch array `lanes`.
    """

    def __init__(self, code: _Code, copy: Value, number: Value) -> None:
        build, size = code.build, code.argument
        self.code, self.copy, self.number = code, copy, number
        self.start = build.mul(number, size["part"])
        left = build.sub(size["batch"], self.start)
        self.rows = build.select(build.icmp_signed("<", left, size["part"]), left, size["part"])
        self.vectors = _quotient_up(code, build.mul(size["heads"], self.rows))

    def copy_in(self, name: str, first: int, channels: range, of: int, factor: float | None = None) -> None:
        """Copy `channels` of an array with `of` channels to the scratch array, from channel `first` on."""
        self._move(name, first, channels, of, factor, is_read=True)

    def copy_out(self, name: str, channels: int) -> None:
        """Copy the first channels of the scratch array to an array with as many channels."""
        self._move(name, 0, range(channels), channels, None, is_read=False)

    def _move(self, name: str, first: int, channels: range, of: int, factor: float | None, *, is_read: bool) -> None:
        code, size = self.code, self.code.argument
        build, rows = code.build, self.rows
        # The last vector ends at the last row, so it repeats some rows. Fewer rows than a vector are copied one by one.
        are_few = build.icmp_signed("<", rows, _LONG(_LANES))
        vectors = build.select(are_few, _LONG(0), _quotient_up(code, rows))
        singles = build.select(are_few, rows, _LONG(0))
        with (
            code.loop(_LONG(len(channels))) as channel,
            code.loop(size["tokens"]) as token,
            code.loop(size["heads"]) as head,
        ):
            row = code.index(
                self.copy, _LONG(of), build.add(channel.number, _LONG(channels.start)), size["heads"], head.number,
                size["tokens"], token.number, size["batch"], self.start,
            )  # fmt: skip
            lane = code.index(
                build.add(channel.number, _LONG(first)), size["tokens"], token.number, size["stride"],
                build.mul(head.number, rows),
            )  # fmt: skip
            ends = [(size[name], row), (size["lanes"], lane)]
            source, target = ends if is_read else ends[::-1]

            def copy(start: Value, kind: Value) -> None:
                value = code.load(source[0], build.add(source[1], start), kind)
                if factor is not None:
                    value = build.fmul(value, kind(factor) if kind is _FLOAT else _vector(factor))
                code.store(value, target[0], build.add(target[1], start))

            with code.loop(vectors) as vector:
                start, last = build.mul(vector.number, _LONG(_LANES)), build.sub(rows, _LONG(_LANES))
                copy(build.select(build.icmp_signed("<", start, last), start, last), _VECTOR)
            with code.loop(singles) as single:
                copy(single.number, _FLOAT)


def _quotient_up(code: _Code, count: Value) -> Value:
    """Return the number of vectors for `count` numbers."""
    return code.build.sdiv(code.build.add(count, _LONG(_LANES - 1)), _LONG(_LANES))


class _Block:
    """One vector of lanes of a part, for all channels and tokens."""

    def __init__(self, part: _Part, number: Value, width: int) -> None:
        code, size = part.code, part.code.argument
        self._code, self._width = code, width
        offset = code.build.mul(number, _LONG(_LANES))
        kept = code.index(
            part.copy, size["parts"], part.number, _LONG(2), _LONG(0), size["tokens"], _LONG(0), size["stride"], offset
        )
        self._lanes, self._kept = code.at(size["lanes"], offset), code.at(size["kept"], kept)

    def load(self, kind: int, token: Value) -> list[Value]:
        """Return all channels of queries (0), keys (1), values (2), gradients (3) or results (4) of a token."""
        return [self._code.load(self._lanes, self._row(kind * self._width + c, token)) for c in range(self._width)]

    def store(self, vectors: Sequence[Value], kind: int, token: Value) -> None:
        """Write all channels of a token."""
        for channel, vector in enumerate(vectors):
            self._code.store(vector, self._lanes, self._row(kind * self._width + channel, token))

    def keep(self, largest: Value, inverse: Value, query: Value) -> None:
        """Write what `kept_of` returns in the backward pass."""
        self._code.store(largest, self._kept, self._row(0, query))
        self._code.store(inverse, self._kept, self._row(1, query))

    def kept_of(self, query: Value) -> tuple[Value, Value]:
        """Return max_k s and 1 / Σ_k 2^(s - max) of a query."""
        return self._code.load(self._kept, self._row(0, query)), self._code.load(self._kept, self._row(1, query))

    def _row(self, channel: int, token: Value) -> Value:
        size = self._code.argument
        return self._code.index(_LONG(channel), size["tokens"], token, size["stride"], _LONG(0))


@contextmanager
def _each_part(code: _Code) -> Iterator[_Part]:
    """Repeat the body of the `with` block for the parts of all copies."""
    with code.loop(code.argument["copies"]) as copy, code.loop(code.argument["parts"]) as part:
        yield _Part(code, copy.number, part.number)


def _copy_projections(part: _Part, width: int) -> None:
    """Copy queries, times log2(e) / √w, keys and values."""
    part.copy_in("projections", 0, range(width), 3 * width, math.log2(math.e) / math.sqrt(width))
    part.copy_in("projections", width, range(width, 3 * width), 3 * width)


def _write_forward(code: _Code, width: int) -> None:
    """Write the function that computes the result, and keeps max_k s and 1 / Σ_k 2^(s - max) for each query."""
    build, tokens = code.build, code.argument["tokens"]
    scores = code.argument["scores"]
    with _each_part(code) as part:
        _copy_projections(part, width)
        with code.loop(part.vectors) as vector:
            block = _Block(part, vector.number, width)
            with code.loop(tokens) as query:
                queries = block.load(0, query.number)
                with code.loop(tokens, [_vector(-math.inf)]) as key:
                    score = code.sum_of_products(queries, block.load(1, key.number))
                    code.store(score, scores, build.mul(key.number, _LONG(_LANES)))
                    largest = key.values[0]
                    key.following = [build.select(build.fcmp_ordered("<=", score, largest), largest, score)]
                largest = key.values[0]
                with code.loop(tokens, [_vector(0.0)] * (width + 1)) as key:
                    score = code.load(scores, build.mul(key.number, _LONG(_LANES)))
                    power = code.power_of_two(build.fsub(score, largest))
                    total, *sums = key.values
                    values = block.load(2, key.number)
                    key.following = [
                        build.fadd(total, power),
                        *(code.plus_product(start, power, value) for start, value in zip(sums, values, strict=True)),
                    ]
                total, *sums = key.values
                inverse = build.fdiv(_vector(1.0), total)
                block.keep(largest, inverse, query.number)
                # The query is not needed any more, so its place takes the result.
                block.store([build.fmul(each, inverse) for each in sums], 0, query.number)
        part.copy_out("result", width)
    build.ret_void()


def _write_backward(code: _Code, width: int) -> None:
    """Write the function that computes the gradient `found` of the projections."""
    build, tokens, sums = code.build, code.argument["tokens"], code.argument["sums"]
    with _each_part(code) as part:
        _copy_projections(part, width)
        part.copy_in("gradient", 3 * width, range(width), width)
        part.copy_in("result", 4 * width, range(width), width)
        with code.loop(part.vectors) as vector:
            block = _Block(part, vector.number, width)
            with code.loop(build.mul(tokens, _LONG(2 * width))) as row:
                code.store(_vector(0.0), sums, build.mul(row.number, _LONG(_LANES)))
            with code.loop(tokens) as query:
                of_queries = _one_query_backward(code, block, query.number)
                # The scores were computed from scaled queries, which include log2(e).
                scale = _vector(1.0 / math.sqrt(width))
                block.store([build.fmul(each, scale) for each in of_queries], 0, query.number)
            with code.loop(tokens) as key:
                found = [code.load(sums, _sums_row(code, channel, key.number)) for channel in range(2 * width)]
                block.store([build.fmul(each, _vector(math.log(2.0))) for each in found[:width]], 1, key.number)
                block.store(found[width:], 2, key.number)
        part.copy_out("found", 3 * width)
    build.ret_void()


def _one_query_backward(code: _Code, block: _Block, query: Value) -> list[Value]:
    """Add a query's share to the gradients of keys and values in `sums`. Return Σ_k ∂s·k, all channels.

    With g the gradient of the result O, ∂v = Σ_q P·g and ∂s = P·(g·v - Σ_c g·O).
    """
    build, sums = code.build, code.argument["sums"]
    queries, own = block.load(0, query), block.load(3, query)
    of_row = build.fneg(code.sum_of_products(own, block.load(4, query)))
    largest, inverse = block.kept_of(query)
    with code.loop(code.argument["tokens"], [_vector(0.0)] * len(queries)) as key:
        keys = block.load(1, key.number)
        score = code.sum_of_products(queries, keys)
        probability = build.fmul(code.power_of_two(build.fsub(score, largest)), inverse)
        of_score = of_row
        for one, value in zip(own, block.load(2, key.number), strict=True):
            of_score = code.plus_product(of_score, one, value)
        of_score = build.fmul(of_score, probability)
        terms = [*((of_score, each) for each in queries), *((probability, each) for each in own)]
        for channel, (left, right) in enumerate(terms):
            at = _sums_row(code, channel, key.number)
            code.store(code.plus_product(code.load(sums, at), left, right), sums, at)
        key.following = [code.plus_product(start, of_score, each) for start, each in zip(key.values, keys, strict=True)]
    return key.values


def _sums_row(code: _Code, channel: int, token: Value) -> Value:
    return code.index(_LONG(channel), code.argument["tokens"], token, _LONG(_LANES), _LONG(0))
