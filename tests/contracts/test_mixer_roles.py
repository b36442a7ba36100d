"""Clause 6 of the mixer contract: a mixer declares its roles, and any other request is a clear error."""

from typing import Any, ClassVar

import pytest
from mixer_contracts import CONTRACTS, ROLES, WIDTH, Case, every_case, inputs

from allyouneed.errors import ConfigError
from allyouneed.mixers import Cost, Mixer, MixerConfig, Role
from allyouneed.positions import AlibiConfig


class DeafConfig(MixerConfig):
    """A mechanism that can do very little, and says so."""

    summary = "passes everything on"
    paper = "none"
    roles: ClassVar[frozenset[Role]] = frozenset({"causal"})
    type: str = "deaf"

    def build(self, width: int, *, role: Role = "causal", position: Any = None) -> Mixer:
        self.require(role, position)
        raise NotImplementedError

    def cost(self, length: int, width: int, *, role: Role = "causal", memory: int | None = None) -> Cost:
        return Cost(0, 0, 1, 1)


EVERY_CONFIG = [DeafConfig(), *(config for contract in CONTRACTS.values() for config in contract.settings)]


@pytest.mark.parametrize("config", EVERY_CONFIG, ids=repr)
def test_an_undeclared_role_is_a_clear_error(config: MixerConfig) -> None:
    for role in set(ROLES) - config.roles:
        with pytest.raises(ConfigError, match=f"mixer '{config.type}' cannot be {role}; it can be "):
            config.build(WIDTH, role=role)


@pytest.mark.parametrize("config", EVERY_CONFIG, ids=repr)
def test_a_position_that_cannot_act_is_a_clear_error(config: MixerConfig) -> None:
    if not config.takes_positions:
        position = config.build_position(AlibiConfig(), WIDTH, "causal")
        with pytest.raises(ConfigError, match="no score that relative positions could act in; use positions none"):
            config.build(WIDTH, position=position)


@every_case
def test_a_missing_memory_or_an_impossible_state_is_a_clear_error(case: Case) -> None:
    mixer = case.build()
    x_BTD, memory_BSD = inputs(case)
    if memory_BSD is not None:
        with pytest.raises(ConfigError, match="needs a memory"):
            mixer(x_BTD)
    if case.role == "bidirectional":
        with pytest.raises(ConfigError, match="cannot continue from a state"):
            mixer(x_BTD, state=object())
