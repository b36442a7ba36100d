"""Binary addition and multiplication, as the Neural GPU learns them: bits from the lowest, operands of equal length.

    1011+0110 -> 11001    (13 + 6 = 19)         n bits each: a sum has n + 1 bits, a product 2n, so the length of the
    11*11     -> 1001     (3 * 3 = 9)           answer follows from that of the question

Lengths are bits of an operand. All items of a training batch have one length, so there is no padding. With
`curriculum = c` the longest length of batch i grows linearly from lengths[0], at i = 0, to lengths[1], at i = c and
after. Seven batches in ten have the current longest length; the others have a random length up to it, so that short
ones are not forgotten.

Paper: Kaiser and Sutskever 2015, arXiv:1511.08228; Zaremba and Sutskever 2014, arXiv:1410.4615 (mixing the curriculum).
Differs: the papers increase the length when the error is small. Here batches are addressed by index, independently of
what was learnt before, so the curriculum is fixed.
"""

from abc import abstractmethod
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from allyouneed.tasks.algorithms import AlgorithmTask, Dice, Lengths, one_tokenizer
from allyouneed.text.codec import Codec
from allyouneed.text.lines import Pair

LONGEST = 0.7  # the fraction of batches with the curriculum's current longest length


class BinaryTask(AlgorithmTask):
    """The settings of arithmetic with two binary numbers."""

    paper = "Kaiser and Sutskever 2015, arXiv:1511.08228"
    sign: ClassVar[str]

    curriculum: Annotated[int, Field(ge=0)] = 0  # training batches until lengths[1] is reached; 0: no curriculum

    @abstractmethod
    def answer(self, left: int, right: int, length: int) -> tuple[int, int]:
        """Return the result for two numbers of `length` bits, and the number of bits to write it with."""

    def codec(self) -> Codec:
        return one_tokenizer(f"01{self.sign}", "characters")

    def longest(self, index: int) -> int:
        """Return the longest length at training batch `index`."""
        low, high = self.lengths
        return high if index >= self.curriculum else low + (high - low) * index // self.curriculum

    def of_batch(self, dice: Dice, index: int) -> Self:
        longest = self.longest(index)
        length = longest if dice.random() < LONGEST else dice.between(self.lengths[0], longest)
        return self.model_copy(update={"lengths": (length, length)})

    def draw(self, dice: Dice, lengths: Lengths) -> Pair:
        length = dice.between(*lengths)
        left, right = ("".join(str(dice.below(2)) for _ in range(length)) for _ in range(2))
        result, bits = self.answer(int(left[::-1], 2), int(right[::-1], 2), length)
        return f"{left}{self.sign}{right}", f"{result:0{bits}b}"[::-1]


class BinaryAdditionConfig(BinaryTask):
    summary = "add two binary numbers, lowest bits first"
    sign = "+"

    type: Literal["binary-addition"] = "binary-addition"

    def answer(self, left: int, right: int, length: int) -> tuple[int, int]:
        return left + right, length + 1


class BinaryMultiplicationConfig(BinaryTask):
    summary = "multiply two binary numbers, lowest bits first"
    sign = "*"

    type: Literal["binary-multiplication"] = "binary-multiplication"

    def answer(self, left: int, right: int, length: int) -> tuple[int, int]:
        return left * right, 2 * length
