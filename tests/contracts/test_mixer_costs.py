"""Clause 4 of the mixer contract: `config.cost` states FLOPs, bytes of state, sequential steps and path length."""

import pytest
import torch
from mixer_contracts import WIDTH, Case, Read, cross_cases, declared_cost, every_case, inputs, run, self_cases
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from helpers import tensors_of


@every_case
@pytest.mark.parametrize("length", [1, 11])
def test_declared_flops_are_those_counted(case: Case, length: int) -> None:
    mixer = case.build()
    x_BTD, memory_BSD = inputs(case, B=1, T=length, S=5)
    memory_BSD = None if memory_BSD is None else memory_BSD.detach()  # the counter follows gradients where it can
    # Fused kernels are invisible to the counter, so it watches the plain one.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        run(mixer, x_BTD.detach(), Read(memory_BSD))
    heads, head_width = case.config.position_heads, case.config.position_width(WIDTH)
    queries = case.config.position_queries(length, case.role)
    position = case.position_config().flops(queries, length, heads, head_width)
    if case.position_config().rotates:
        position += case.config.rotation_flops(length, WIDTH, case.role)
    assert declared_cost(case, length, memory=5).flops + position == counter.get_total_flops()


@every_case
@pytest.mark.parametrize("length", [1, 11])
def test_declared_state_is_the_state_kept(case: Case, length: int) -> None:
    mixer = case.build(torch.float32)
    x_BTD, memory_BSD = inputs(case, B=1, T=length, S=5)
    with torch.no_grad():  # what decoding keeps; training may keep something else
        _, state = run(mixer, x_BTD.float(), Read(None if memory_BSD is None else memory_BSD.float()))
    kept = sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(state))
    assert kept == declared_cost(case, length, memory=5).state_bytes


@self_cases
@pytest.mark.parametrize("length", [2, 9])
def test_declared_path_is_how_far_influence_travels(case: Case, length: int) -> None:
    """The first position reaches the last after `path` layers, and not before."""
    path = declared_cost(case, length).path
    draws = 100 if case.config.reads_by_content else 1
    for layers in range(length + 1 if path is None else path + 1):
        assert any(_first_reaches_last(case, length, layers) for _ in range(draws)) == (layers == path)


def _first_reaches_last(case: Case, length: int, layers: int) -> bool:
    mixers = [case.build() for _ in range(layers)]
    x_BTD = torch.randn(1, length, WIDTH, dtype=torch.float64)
    ends = []
    for y_BTD in (x_BTD, torch.cat([torch.randn_like(x_BTD[:, :1]), x_BTD[:, 1:]], dim=1)):
        with torch.no_grad():
            for mixer in mixers:
                # The norm keeps scores small: a saturated softmax passes nothing on.
                y_BTD = nn.functional.layer_norm(y_BTD + mixer(y_BTD)[0], (WIDTH,))
        ends.append(y_BTD[0, -1])
    return bool((ends[0] - ends[1]).abs().max() > 1e-13)


@cross_cases
def test_a_cross_mixer_reaches_every_slot_in_one_layer(case: Case) -> None:
    x_BTD, memory_BSD = inputs(case, B=1)
    assert memory_BSD is not None
    y_BTD, _ = run(case.build(), x_BTD, Read(memory_BSD))
    (gradient_BSD,) = torch.autograd.grad(y_BTD[0, -1].sum(), memory_BSD)
    assert declared_cost(case, 7, memory=5).path == 1
    assert (gradient_BSD != 0).any(dim=-1).all()
