"""What is read of a compiled program: products, loops, messages, arrays and the lines that make them."""

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from contexture.train.plan import costs, plan
from contexture.train.plan.flops import product_flops, traced_flops
from contexture.train.plan.hlo import parse

FOLDER = str(Path(__file__).parent)


def compiled(function, *shapes, sharding=None):
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding) for shape in shapes]
    return parse(str(jax.jit(function).lower(*arguments).compile().as_text()))


def layers(kernels_NDD, x_BD):
    return jax.lax.scan(lambda x, kernel: (jnp.sin(x @ kernel), None), x_BD, kernels_NDD)[0].sum()


def test_a_loops_products_count_as_often_as_it_runs():
    program = compiled(layers, (7, 64, 64), (32, 64))
    assert sum(costs.costs(program).flops.values()) == 2 * 7 * 32 * 64 * 64


def test_a_gradient_costs_twice_its_value_more():
    traced = jax.jit(jax.grad(layers, (0, 1))).trace(jnp.ones((7, 64, 64)), jnp.ones((32, 64)))
    program = parse(str(traced.lower().compile().as_text()))
    forward = 2 * 7 * 32 * 64 * 64
    assert traced_flops(traced.jaxpr.jaxpr) == {"f32": 3 * forward}
    assert sum(costs.costs(program).flops.values()) == 3 * forward


def test_what_the_forward_loop_keeps_for_the_backward_loop_is_counted():
    program = compiled(jax.grad(layers, (0, 1)), (7, 64, 64), (32, 64))
    # Of each layer: its input, and the cosine of its product.
    assert costs.saved_activations(program) == 2 * 4 * 7 * 32 * 64
    assert costs.saved_activations(compiled(layers, (7, 64, 64), (32, 64))) is None


@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 3), st.integers(3, 9), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2), st.integers(1, 2),
    st.integers(1, 2),
)  # fmt: skip
@example(1, 3, 3, 1, 0, 1, 2)
def test_a_convolutions_products_are_those_that_a_count_says(batch, length, size, stride, pad, dilate, window):
    def convolve(x, kernel):
        dims = ("NWC", "WIO", "NWC")
        return jax.lax.conv_general_dilated(
            x, kernel, (stride,), ((pad, 1),), (dilate,), (window,), dimension_numbers=dims
        )

    shapes = jax.ShapeDtypeStruct((batch, length, 2), "float32"), jax.ShapeDtypeStruct((size, 2, 5), "float32")
    program = parse(str(jax.jit(convolve).lower(*shapes).as_text("hlo")))
    computation = program.computation(program.entry)
    # A window that is wider than what it moves over has no place at all: that program holds no convolution.
    instructions = [i for i in computation.values() if i.opcode == "convolution"]
    # Ones convolved with ones count, at each place, the products that are not with padding.
    ones = convolve(jnp.ones((batch, length, 2)), jnp.ones((size, 2, 5)))
    products = sum(sum(product_flops(instruction, computation).values()) for instruction in instructions)
    assert products == 2 * float(ones.sum()) and bool(instructions) == bool(ones.size)


def test_messages_are_counted_with_their_bytes():
    mesh = Mesh(np.array(jax.devices()[:8]), ("data",))
    placed = NamedSharding(mesh, PartitionSpec("data"))
    cost = costs.costs(compiled(lambda x: x.sum(0), (16, 1000), sharding=placed))
    assert list(cost.collectives) == ["all-reduce"]
    assert (cost.collectives["all-reduce"].count, cost.collectives["all-reduce"].bytes) == (1, 4000)
    assert cost.sent_bytes == 8000  # an all-reduce goes round twice


def test_a_reduce_scatter_of_a_tpu_is_one():
    """Its compiler writes a fusion of an all-reduce and a slice, which goes round once."""
    program = parse("""HloModule m

%all-reduce-scatter.2.clone (x: bf16[8,64]) -> bf16[2,64] {
  %x = bf16[8,64]{1,0} parameter(0)
  %sum = bf16[8,64]{1,0} all-reduce(%x), channel_id=7, replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %part = bf16[2,64]{1,0} dynamic-slice(%sum, %place, %zero), dynamic_slice_sizes={2,64}
}

ENTRY %main (x: bf16[8,64]) -> bf16[2,64] {
  %x = bf16[8,64]{1,0} parameter(0)
  ROOT %y = bf16[2,64]{1,0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.2.clone
}
""")
    cost = costs.costs(program)
    assert {kind: traffic.bytes for kind, traffic in cost.collectives.items()} == {"reduce-scatter": 1024}
    assert cost.sent_bytes == 1024


@pytest.mark.parametrize(("start", "sent"), [("entry", 1), ("body", 3)])
def test_a_message_that_overlaps_with_a_loop_counts_as_often_as_it_starts(start, sent):
    """Its compiler spreads a message over the fusions that it overlaps with; each of them names its channel."""
    first = "  %first = bf16[8,64]{1,0} fusion(%x), kind=kCustom, calls=%start"
    program = parse(f"""HloModule m

%start (x: bf16[2,64]) -> bf16[8,64] {{
  %x = bf16[2,64]{{1,0}} parameter(0)
  ROOT %a = bf16[8,64]{{1,0}} all-gather(%x), channel_id=7, dimensions={{0}}, frontend_attributes={{chain_id="0"}}
}}

%next (x: bf16[2,64]) -> bf16[8,64] {{
  %x = bf16[2,64]{{1,0}} parameter(0)
  ROOT %b = bf16[8,64]{{1,0}} all-gather(%x), channel_id=7, dimensions={{0}}, frontend_attributes={{chain_id="0"}}
}}

%body (x: bf16[2,64]) -> bf16[2,64] {{
  %x = bf16[2,64]{{1,0}} parameter(0)
{first if start == "body" else ""}
  %second = bf16[8,64]{{1,0}} fusion(%x), kind=kCustom, calls=%next
  ROOT %y = bf16[2,64]{{1,0}} copy(%x)
}}

ENTRY %main (x: bf16[2,64]) -> bf16[2,64] {{
  %x = bf16[2,64]{{1,0}} parameter(0)
{first if start == "entry" else ""}
  ROOT %y = bf16[2,64]{{1,0}} while(%x), body=%body, backend_config={{"known_trip_count":{{"n":"3"}}}}
}}
""")
    gathered = costs.costs(program).collectives["all-gather"]
    assert (gathered.count, gathered.bytes) == (sent, sent * 1024)


def test_the_largest_arrays_are_named_with_the_line_that_makes_them():
    def outer(x):
        return jnp.sort(jnp.outer(x, x), axis=0).sum()  # the line

    line = outer.__code__.co_firstlineno + 1
    # A program from the cache on disk has the lines, and the folder, of the day it was compiled.
    with plan.compiling_anew():
        largest = costs.largest_arrays(compiled(outer, (300,)), FOLDER)
    assert largest[0].array.shape == (300, 300) and largest[0].array.bytes == 4 * 300 * 300
    assert f"test_costs.py:{line}" in {row.source for row in largest}


def test_a_slice_of_a_large_array_counts_as_a_slice():
    cost = costs.costs(compiled(lambda x: jax.lax.dynamic_slice(x, (3, 0), (2, 500)) * 2, (100_000, 500)))
    assert cost.memory_bytes <= 4 * 4 * 1000


@pytest.mark.parametrize(
    ("instruction", "numbers"),
    [
        ("f32[3,8]{1,0} slice(%x)", 2 * 3 * 8),
        ("f32[4,8]{1,0} gather(%x, %i)", 2 * 4 * 8),
        ("f32[2,8]{1,0} dynamic-slice(%x, %i, %i)", 2 * 2 * 8),
        ("f32[100,8]{1,0} dynamic-update-slice(%x, %u, %i, %i)", 2 * 5 * 8),
        ("f32[100,8]{1,0} scatter(%x, %i, %u)", 3 * 5 * 8),
        ("f32[100,8]{1,0} add(%x, %x)", 3 * 100 * 8),
        ("f32[5,8]{1,0} negate(%u)", 2 * 5 * 8),
        ("f32[5,8]{1,0:S(1)} negate(%u)", 5 * 8),  # what is in fast memory is not written to the large one
        ("f32[8,100]{0,1} bitcast(%x)", 0),
        ("f32[100,8]{1,0} copy-done(%x)", 0),
        ("(f32[100,8]{1,0}, f32[100,8]{1,0}, u32[]) copy-start(%x)", 2 * 100 * 8),
        ("(f32[100,8]{1,0}, f32[3,8]{1,0:S(1)}, u32[]) slice-start(%x)", 3 * 8),
    ],
)
def test_an_instruction_reads_and_writes_what_it_needs_of_its_arrays(instruction, numbers):
    program = parse(f"""HloModule m

ENTRY %main (x: f32[100,8], u: f32[5,8], i: s32[4]) -> f32[] {{
  %x = f32[100,8]{{1,0}} parameter(0)
  %u = f32[5,8]{{1,0}} parameter(1)
  %i = s32[4]{{0}} parameter(2)
  ROOT %y = {instruction}
}}
""")
    assert costs.costs(program).memory_bytes == 4 * numbers


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("  %a.1 = f32[2,3]{1,0} add(%x, %y)", ("a.1", "add", ("x", "y"), [(2, 3)])),
        ("  ROOT %t = (f32[], s32[4]{0:T(128)S(1)}) tuple(f32[] %x, s32[4] %y.2)",
         ("t", "tuple", ("x", "y.2"), [(), (4,)])),
        ("  b = bf16[8]{0} all-gather-start(c), channel_id=1", ("b", "all-gather-start", ("c",), [(8,)])),
    ],
)  # fmt: skip
def test_an_instruction_is_read(line, expected):
    program = parse(f"HloModule m\n\nENTRY %main (x: f32[]) -> f32[] {{\n{line}\n}}\n")
    (instruction,) = program.computation("main").values()
    shapes = [array.shape for array in instruction.result]
    assert (instruction.name, instruction.opcode, instruction.operands, shapes) == expected
    assert all(array.in_memory == ("S(1)" not in line or array.shape == ()) for array in instruction.result)
    assert math.prod(instruction.result[0].shape) == instruction.result[0].size


def test_a_loop_whose_first_turn_was_peeled_off_runs_once_less():
    """Its counter begins at 1, behind a copy, and is the second value of its state."""
    program = parse("""HloModule m

%body (s: (f32[4,4], s32[])) -> (f32[4,4], s32[]) {
  %s = (f32[4,4]{1,0}, s32[]) parameter(0)
  %x = f32[4,4]{1,0} get-tuple-element(%s), index=0
  %i = s32[] get-tuple-element(%s), index=1
  %y = f32[4,4]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %send = (f32[4,4]{1,0}, u32[], token[]) send(%y, %i), frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime"}
  ROOT %r = (f32[4,4]{1,0}, s32[]) tuple(%y, %i)
}

%condition (s: (f32[4,4], s32[])) -> pred[] {
  %s = (f32[4,4]{1,0}, s32[]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=1
  %n = s32[] constant(6)
  ROOT %p = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (x: f32[4,4]) -> (f32[4,4], s32[]) {
  %x = f32[4,4]{1,0} parameter(0)
  %one = s32[] constant(1)
  %first = s32[] copy(%one)
  %s = (f32[4,4]{1,0}, s32[]) tuple(%x, %first)
  ROOT %y = (f32[4,4]{1,0}, s32[]) while(%s), condition=%condition, body=%body
}
""")  # noqa: E501
    cost = costs.costs(program)
    assert sum(cost.flops.values()) == 5 * 2 * 4 * 4 * 4
    # What the hosts' network takes to other slices.
    assert (cost.slices.count, cost.slices.bytes) == (5, 5 * 64) and not cost.collectives


@pytest.mark.parametrize(
    ("body", "told", "times"),
    [("body", 7, 7), ("body", None, 6), ("windowed_dot_general_body", None, 3), ("body", 0, 1)],
)
def test_a_loop_runs_as_often_as_it_says_or_its_condition_counts(body, told, times):
    """0: neither says so. A body of the partitioner's that passes a factor round the devices has two turns."""
    bound = "  %n = s32[] constant(6)\n" if told != 0 else ""
    count = f', backend_config={{"known_trip_count":{{"n":"{told}"}}}}' if told else ""
    program = parse(f"""HloModule m

%{body} (x: f32[4,4]) -> f32[4,4] {{
  %x = f32[4,4]{{1,0}} parameter(0)
  ROOT %y = f32[4,4]{{1,0}} dot(%x, %x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}

%condition (x: f32[4,4]) -> pred[] {{
  %x = f32[4,4]{{1,0}} parameter(0)
{bound}  ROOT %p = pred[] custom-call(%x)
}}

ENTRY %main (x: f32[4,4]) -> f32[4,4] {{
  %x = f32[4,4]{{1,0}} parameter(0)
  ROOT %y = f32[4,4]{{1,0}} while(%x), condition=%condition, body=%{body}{count}
}}
""")
    assert sum(costs.costs(program).flops.values()) == times * 2 * 4 * 4 * 4
