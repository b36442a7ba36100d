"""Claims of the literature, tested: one class per claim, listed in the table CLAIMS.

To add a claim, write a class in the file of its topic and add a line here.
"""

from allyouneed.lab.claims.ancestors import Length, LongCopy, Vanishing
from allyouneed.lab.claims.attention import Heads, ScaleGradient, ScaleTraining, SoftLookup
from allyouneed.lab.claims.base import Claim
from allyouneed.lab.claims.depth import Depth, WarmUp
from allyouneed.lab.claims.long_sequences import LinearRecall, LinearTime, SegmentMemory, Sparse
from allyouneed.lab.claims.positions import Extrapolation, Order, OrderInDecoder
from allyouneed.lab.claims.scaling import DecoderOnly, KaplanExponent, Modifications, PowerLaw
from allyouneed.lab.claims.structure import Crossover, Paths

CLAIMS: dict[str, Claim] = {
    claim.name: claim
    for claim in (
        SoftLookup(),
        Order(),
        OrderInDecoder(),
        Extrapolation(),
        ScaleGradient(),
        ScaleTraining(),
        Heads(),
        Depth(),
        WarmUp(),
        Paths(),
        Crossover(),
        Vanishing(),
        Length(),
        LongCopy(),
        LinearTime(),
        LinearRecall(),
        Sparse(),
        SegmentMemory(),
        PowerLaw(),
        KaplanExponent(),
        Modifications(),
        DecoderOnly(),
    )
}
