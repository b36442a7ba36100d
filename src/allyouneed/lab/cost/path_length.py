"""How far influence travels: layers until the first position can change the last   (table 1 of Vaswani et al. 2017).

Found by doing it. In each layer (new random weights, new random inputs) every position that can be influenced by now
gets other numbers, and the positions whose output changes by that are those that can be influenced after the layer:

    P_0 = {first},   P_(l+1) = P_l + {t : mixer(x)_t != mixer(x')_t},   x' = x with other numbers at P_l

and the path is the first l with the last position in P_l. Nothing has to survive many layers in a row, so nothing
vanishes on the way: a window's hundredth layer is followed like its first. A layer that works step by step may forget
within itself (a recurrence does, exponentially), and float64 would call the rest nothing; so it is read piece by piece
through its state, and what differs in the state is made as large as it was between pieces.

A recurrence has path 1 by this count: one layer carries the first position to the last. Inside that layer it passes
through every step in between, which is the O(n) that the paper states: `Cost.sequential` says so.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from allyouneed.mixers import Mixer, MixerConfig, Role
from allyouneed.mixers.parts.state import Growable

Layers = MixerConfig | Callable[[int], MixerConfig]  # the mixer of every layer, or of layer 0, 1, ..
CHANGED = 1e-13  # of numbers around 1, in float64
PIECE = 16  # positions of a step-by-step mixer that are read before what is left of a difference is enlarged


def default_role(config: MixerConfig) -> Role:
    """Causal, if it can be."""
    return "causal" if "causal" in config.roles else "bidirectional"


def path_length(
    layers: Layers, length: int, width: int, *, role: Role | None = None, draws: int = 1, seed: int = 0
) -> int | None:
    """How many layers it takes until the first position can change the last of `length`; None: it never can.

    `draws`: random weights and inputs that are tried for each layer; more where what is read depends on what it says.
    """
    if length < 2:
        return 0
    of_layer = layers if callable(layers) else lambda _: layers
    reached_T = torch.zeros(length, dtype=torch.bool)
    reached_T[0] = True
    idle = 0  # layers in a row that reached nobody new
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        for layer in range(length):
            config = of_layer(layer)
            after_T = reached_T.clone()
            for _ in range(draws):
                after_T |= influenced(config, reached_T, width, role or default_role(config))
                if after_T[-1]:
                    return layer + 1
            idle = idle + 1 if torch.equal(after_T, reached_T) else 0
            # Layers that differ may take turns; when all of a kind have passed, nothing new will come.
            if idle > (0 if isinstance(layers, MixerConfig) else 16):
                return None
            reached_T = after_T
    return None


def influenced(config: MixerConfig, reached_T: Tensor, width: int, role: Role) -> Tensor:
    """Which positions (T) of one random layer change when those that were reached (T) do."""
    length = reached_T.shape[0]
    mixer = _random(config.build(width, role=role))
    x_BTD = torch.randn(1, length, width, dtype=torch.float64)
    other_BTD = torch.where(reached_T.view(1, -1, 1), torch.randn_like(x_BTD), x_BTD)
    if role != "causal" or config.cost(length, width, role=role).sequential == 1:
        return _differs(mixer(x_BTD)[0], mixer(other_BTD)[0])
    found, states = [], (None, None)
    for piece, other in zip(x_BTD.split(PIECE, dim=1), other_BTD.split(PIECE, dim=1), strict=True):
        (y, state), (z, changed) = mixer(piece, state=states[0]), mixer(other, state=states[1])
        found.append(_differs(y, z))
        states = state, enlarged(state, changed)
    return torch.cat(found)


def enlarged(state: Any, other: Any) -> Any:
    """`other` with its differences from `state` made large; where there is none, there is none still."""
    if isinstance(state, Growable):
        return Growable(enlarged(state.tensor, other.tensor))
    if isinstance(state, Tensor):
        if not state.is_floating_point():
            return other
        apart = other - state
        largest = apart.abs().max() if apart.numel() else 0
        return state + apart / largest if largest > CHANGED else state.clone()
    if dataclasses.is_dataclass(state) and not isinstance(state, type):
        names = [field.name for field in dataclasses.fields(state)]
        return dataclasses.replace(state, **{n: enlarged(getattr(state, n), getattr(other, n)) for n in names})
    if isinstance(state, list | tuple):
        return type(state)(enlarged(one, two) for one, two in zip(state, other, strict=True))
    return other


def _differs(y_BTD: Tensor, z_BTD: Tensor) -> Tensor:
    return (y_BTD - z_BTD).abs().amax(dim=(0, 2)) > CHANGED


def _random(mixer: Mixer) -> Mixer:
    """In float64; what begins at zero is made random, since a zero could hide an influence."""
    mixer = mixer.double().eval()
    for parameter in mixer.parameters():
        if not parameter.any():
            parameter.normal_(std=0.1)
    return mixer
