"""Clause 1 of the mixer contract: the shape is kept, and values and gradients equal the oracle's in float64."""

import pytest
import torch
from mixer_contracts import CONTRACTS, Case, Read, assert_close_with_gradients, every_case, inputs, run
from oracle_parts import Reading

from allyouneed.mixers import MIXERS


def test_every_mixer_is_under_contract() -> None:
    assert set(MIXERS) == set(CONTRACTS)
    for name, contract in CONTRACTS.items():
        assert contract.settings
        assert all(type(config) is MIXERS[name] for config in contract.settings)


@pytest.mark.no_shapes  # the loops return too often; the clauses below run the same code under the check
@every_case
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_equals_its_oracle(case: Case, padded: bool) -> None:
    mixer = case.build()
    x_BTD, memory_BSD = inputs(case, T=5, S=4)
    read_length = x_BTD.shape[1] if memory_BSD is None else memory_BSD.shape[1]
    mask_BS = torch.ones(2, read_length, dtype=torch.bool)
    if padded:
        mask_BS[0, 0] = mask_BS[1, 2:4] = False
    y_BTD, _ = run(mixer, x_BTD, Read(memory_BSD, mask_BS if padded else None))
    assert y_BTD.shape == x_BTD.shape

    rows = []
    for b in range(2):
        memory_SD = None if memory_BSD is None else memory_BSD[b]
        reading = Reading(case.role, case.position, mask_BS[b].tolist(), memory_SD)
        rows.append(CONTRACTS[case.name].oracle(mixer, x_BTD[b], reading))
    # The outputs at padded positions are not specified.
    counts = mask_BS if memory_BSD is None else torch.ones(x_BTD.shape[:2], dtype=torch.bool)
    sources = [x for x in (x_BTD, memory_BSD, *mixer.parameters()) if x is not None]
    assert_close_with_gradients(y_BTD[counts], torch.stack(rows)[counts], sources, 1e-10)


@pytest.mark.parametrize("name", [name for name, contract in CONTRACTS.items() if contract.finer is not None])
def test_a_finer_approximation_comes_nearer(name: str) -> None:
    contract = CONTRACTS[name]
    assert contract.finer is not None
    assert contract.approximates is not None
    errors = []
    for config in (contract.settings[0], contract.finer):
        case = Case(name, config, "bidirectional" if "bidirectional" in config.roles else "causal", "none")
        error = 0.0
        for _ in range(5):
            mixer, x_BTD = case.build(), inputs(case, B=1)[0]
            y_TD = contract.approximates(mixer, x_BTD[0], Reading(case.role, "none", [True] * 7))
            error += float((mixer(x_BTD)[0][0] - y_TD).detach().norm())
        errors.append(error)
    assert errors[1] < 0.75 * errors[0]
