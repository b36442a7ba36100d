"""A packed matrix with an adapter beside it."""

from torch import Tensor

from allyouneed.kernels.products import Packed, PackedInt8


class AdaptedMatrix:
    """x W^T + b + (x A^T) B^T: W is packed once, and many adapters A (R, D), B (N, R) share it."""

    def __init__(self, base: Packed | PackedInt8, a_RD: Tensor, b_NR: Tensor) -> None:
        if a_RD.shape[1] != base.inputs or b_NR.shape != (base.outputs, len(a_RD)):
            raise ValueError(
                f"an adapter of {tuple(a_RD.shape)} and {tuple(b_NR.shape)} for {base.outputs} x {base.inputs} weights"
            )
        self.base, self.down, self.up_RN = base, Packed(a_RD.float(), None), b_NR.float().T.contiguous()

    def __deepcopy__(self, memo: object) -> "AdaptedMatrix":
        return self  # it does not change

    def project(self, x: Tensor) -> Tensor:
        """Return x W^T + b + (x A^T) B^T of (..., D)."""
        y, thin = self.base.project(x), self.down.project(x)
        y.view(-1, y.shape[-1]).addmm_(thin.view(-1, thin.shape[-1]), self.up_RN)
        return y

    def whole(self) -> Tensor:
        """Return W + B A in float32."""
        return self.base.whole().addmm(self.up_RN.T, self.down.whole())
