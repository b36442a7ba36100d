"""A report on a compiled program: its slots, heads and neurons, under the names of the source."""

from collections.abc import Sequence
from dataclasses import dataclass

from allyouneed.models.base import Model
from allyouneed.rasp.atoms import Atom
from allyouneed.rasp.compiler.lowering import Network
from allyouneed.words import counted


@dataclass(frozen=True)
class SlotReport:
    """One number of the residual stream."""

    place: int
    name: str
    layer: int  # the layer that writes it; 0: the embedding
    numbers: dict[Atom, float]  # its content for each value of the s-op


@dataclass(frozen=True)
class HeadReport:
    """One head."""

    selector: str
    counts: bool  # computes a width, not an aggregate
    scores: int  # width of queries and keys
    slots: tuple[int, ...]  # the slots that it writes


@dataclass(frozen=True)
class NeuronReport:
    """The neurons of one elementwise function."""

    name: str
    neurons: int
    slots: tuple[int, ...]
    margin: float  # smallest gap at a threshold, in units of the largest expected error


@dataclass(frozen=True)
class LayerReport:
    """The heads and elementwise functions of one layer."""

    heads: tuple[HeadReport, ...]
    functions: tuple[NeuronReport, ...]


@dataclass(frozen=True)
class CompilationReport:
    """The size of a compiled model, and the purpose of each part."""

    width: int
    hidden: int
    parameters: int
    slots: tuple[SlotReport, ...]
    layers: tuple[LayerReport, ...]

    @property
    def heads(self) -> list[int]:
        """The number of heads in each layer."""
        return [len(layer.heads) for layer in self.layers]

    def __str__(self) -> str:
        lines = [
            f"{counted(len(self.layers), 'layer')}, heads {self.heads}, width {self.width}, hidden {self.hidden}, "
            f"{self.parameters:,} parameters",
            "slots:",
            *(f"  {slot.place:3} {slot.name}, from layer {slot.layer}" for slot in self.slots),
        ]
        for number, layer in enumerate(self.layers, start=1):
            lines.append(f"layer {number}:")
            for head in layer.heads:
                what = "counts" if head.counts else "reads"
                lines.append(f"  head {head.selector}: {what} into {_listed(head.slots)}")
            for group in layer.functions:
                lines.append(
                    f"  {counted(group.neurons, 'neuron')}: {group.name} into {_listed(group.slots)} "
                    f"(margin {group.margin:.0f})"
                )
        return "\n".join(lines)


def _listed(slots: Sequence[int]) -> str:
    return ", ".join(map(str, slots))


def report(network: Network, model: Model) -> CompilationReport:
    """Return the report of an assembled model."""
    slots = []
    for slot in network.slots:
        values = slot.owner.values if slot.owner is not None else (True,)
        numbers = dict(zip(values, slot.function.tolist(), strict=True))
        slots.append(SlotReport(slot.place, slot.what, slot.written, numbers))
    layers = []
    for layer in network.layers:
        heads = [
            HeadReport(head.label, head.counts, len(head.products), tuple(slot.place for _, slot in head.values))
            for head in layer.heads.values()
        ]
        functions = [
            NeuronReport(
                group.label, len(group.steps.slopes_N), tuple(slot.place for slot in group.slots), group.margin
            )
            for group in layer.neurons
        ]
        layers.append(LayerReport(tuple(heads), tuple(functions)))
    config = model.config
    return CompilationReport(config.width, config.hidden, model.parameter_count(), tuple(slots), tuple(layers))  # type: ignore[attr-defined]
