"""Path length: the number of layers until the first position can change the last   (table 1 of Vaswani et al. 2017).

It is measured, not derived. In each layer (new random weights, new random inputs) all positions reached so far are
changed, and the positions whose output differs are those reached after the layer:

    P_0 = {first},   P_(l+1) = P_l + {t : mixer(x)_t != mixer(x')_t},   x' = x with other numbers at P_l

The path length is the first l with the last position in P_l. No signal has to survive many layers in a row, so nothing
vanishes: the hundredth layer of a window is treated like its first. A sequential layer may forget within itself (a
recurrence does so exponentially), below the precision of float64. Such a layer is read in segments through its state,
and differences in the state are rescaled between segments.

By this count a recurrence has path length 1: one layer carries the first position to the last. Inside that layer the
signal passes through all steps in between, which is the O(n) of the paper; see `Cost.sequential`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from allyouneed.mixers import Mixer, MixerConfig, Role
from allyouneed.mixers.parts.state import Growable

Layers = MixerConfig | Callable[[int], MixerConfig]  # the mixer of every layer, or of layer 0, 1, ..
CHANGED = 1e-13  # smallest difference that counts, for float64 numbers around 1
PIECE = 16  # positions of a sequential mixer that are read between two rescalings


def default_role(config: MixerConfig) -> Role:
    """Return causal if the mixer supports it, else bidirectional."""
    return "causal" if "causal" in config.roles else "bidirectional"


def path_length(
    layers: Layers, length: int, width: int, *, role: Role | None = None, draws: int = 1, seed: int = 0
) -> int | None:
    """Return the number of layers until the first position can change the last of `length`; None if it never can.

    `draws`: number of random weights and inputs tried for each layer; use more if the pattern depends on the content.
    """
    if length < 2:
        return 0
    of_layer = layers if callable(layers) else lambda _: layers
    reached_T = torch.zeros(length, dtype=torch.bool)
    reached_T[0] = True
    idle = 0  # consecutive layers that reached no new position
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
            # Layers may alternate between kinds; after enough of them no new position will be reached.
            if idle > (0 if isinstance(layers, MixerConfig) else 16):
                return None
            reached_T = after_T
    return None


def influenced(config: MixerConfig, reached_T: Tensor, width: int, role: Role) -> Tensor:
    """Return which positions (T) of one random layer change if the reached ones (T) do."""
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
    """Return `other` with its differences from `state` rescaled to 1; zero differences remain zero."""
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
    """Convert to float64 and randomise parameters initialised to zero, which could hide an influence."""
    mixer = mixer.double().eval()
    for parameter in mixer.parameters():
        if not parameter.any():
            parameter.normal_(std=0.1)
    return mixer
