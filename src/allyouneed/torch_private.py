"""The private operations of torch that this package calls, and the versions of torch that have them as expected.

Private operations may change with any minor version. Importing this module outside the supported range raises
DependencyError, which prevents a crash or wrong numbers later.
"""

import torch

from allyouneed.errors import DependencyError

SUPPORTED = ((2, 9), (2, 13))  # the first and the last minor version; pyproject.toml has the same range


def require_supported(version: str) -> None:
    """Raise DependencyError unless this version of torch is in the supported range."""
    oldest, newest = (".".join(map(str, one)) for one in SUPPORTED)
    found = tuple(int(part) for part in version.split(".")[:2])
    if not SUPPORTED[0] <= found <= SUPPORTED[1]:
        raise DependencyError(
            f"torch {version}: private operations used here are tested with {oldest} to {newest} only; "
            f"install one of these (pip install 'torch>={oldest},<{SUPPORTED[1][0]}.{SUPPORTED[1][1] + 1}')"
        )


require_supported(torch.__version__)

flash_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_attention_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
convolution_backward = torch.ops.aten.convolution_backward
softmax_backward = torch._softmax_backward_data
weight_norm = torch._weight_norm
foreach_add_ = torch._foreach_add_
foreach_sub_ = torch._foreach_sub_
foreach_mul_ = torch._foreach_mul_
foreach_lerp = torch._foreach_lerp
foreach_lerp_ = torch._foreach_lerp_
