"""Devices that a user names."""

import torch

from allyouneed.errors import ConfigError


def check_device(device: str | torch.device) -> None:
    """Raise ConfigError if a device is not available."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:  # torch raises any, depending on the kind of device
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {device}: not usable here: {reason}; cpu always works") from None
