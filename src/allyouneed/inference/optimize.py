"""Replace the parts of a model by faster ones that give the same outputs, for decoding a few positions per step.

A decoding step is bound by two things, and neither is arithmetic:

- how fast the weights stream from memory. Where there is a C compiler, projections of a few rows run on packed weights
  (kernels/products.c), in float32 or int8. Elsewhere, a projection y = x W^T reads W (out, in) by rows; with one to a
  few rows of x torch's kernels stream it faster if the *inputs* are the slow dimension (32 rows, 256 to 768: 109 -> 84
  microseconds);
- what Python does between the operations: `nn.Module.__call__` looks for hooks, and attributes that are modules or
  parameters are found only after the normal lookup has failed. That was a sixth of a step. A stack of ordinary blocks
  is one call (inference/fused_stack.py).

Shapes and parameter names stay the same, and so do the outputs, except with int8. Gradients stay correct: with
gradients enabled, torch computes everything from the original weights. What an optimized model cannot do, it refuses:
training mode, hooks (its modules are not called one by one), `load_state_dict`, and another device or dtype. It does
not notice parameters that are edited in place. Do not edit them: packed copies, made on first use, keep the old values.
"""

from functools import partial
from typing import Any, NoReturn

import torch
from torch import nn

from allyouneed import kernels
from allyouneed.block import Block
from allyouneed.errors import ConfigError
from allyouneed.inference.attention import SoftmaxStep
from allyouneed.inference.back_reference import BackReference
from allyouneed.inference.fused_stack import fuse, is_fusable
from allyouneed.inference.head import OptimizedHead
from allyouneed.inference.layers import OptimizedLinear, OptimizedNorm, add_and_norm
from allyouneed.mixers.softmax import Softmax
from allyouneed.models.base import Model
from allyouneed.models.parts.stack import Stack

REMEDY = "use a plain model: allyouneed.folder.load_folder(path).model"
HOOKS = (
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
    "register_backward_hook",
)


@torch.no_grad()
def optimize_for_inference(model: Model, int8: bool = False) -> None:
    """Optimize a model in place. Afterwards it cannot be trained or saved, and its parameters must not be edited.

    The head is separated from the embedding that it may be tied to, because embeddings are read by rows. With `int8`,
    projections and head compute in int8.
    """
    if is_optimized(model):
        raise ConfigError("the model is already optimized for inference")
    # Checked even if the result does not matter: the kernels are compiled now, not during the first request.
    if not kernels.usable(torch.empty(0, device=model.head.weight_VD.device)) and int8:
        raise ConfigError("int8 needs a CPU and a C compiler (cc, gcc or clang) that can be found")
    _require_no_hooks(model)
    for module in list(model.modules()):
        _replace_layers(module, int8)
    names = [name for name, one in model.named_parameters(remove_duplicate=False) if one is model.head.weight_VD]
    model.head = OptimizedHead(model.head, int8, tied=len(names) > 1)
    for module in list(model.modules()):
        if isinstance(module, Softmax):
            module.__dict__["advance"] = SoftmaxStep(module)
        elif isinstance(module, Block) and module.norm_place == "post":
            module.__dict__["add_residual"] = add_and_norm
        elif isinstance(module, Stack) and is_fusable(module):
            fuse(module)
    model.eval()
    for module in model.modules():
        module.__dict__.update(module._modules | module._parameters)  # found at once, and still registered
        _refuse_changes(module)


def is_optimized(model: nn.Module) -> bool:
    """Return whether a model is optimized for inference, and so in evaluation mode for good."""
    return "load_state_dict" in model.__dict__


def _replace_layers(module: nn.Module, int8: bool) -> None:
    for name, child in module.named_children():
        if type(child) is nn.Linear:
            setattr(module, name, OptimizedLinear(child, int8))
        elif isinstance(child, nn.LayerNorm | nn.RMSNorm):
            setattr(module, name, OptimizedNorm(child))


def _require_no_hooks(model: Model) -> None:
    for name, module in model.named_modules():
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
            raise ConfigError(
                f"{name or 'the model'} has hooks, which an optimized model does not run; remove them, or {REMEDY}"
            )


def _refuse_changes(module: nn.Module) -> None:
    module.__dict__ |= dict.fromkeys(HOOKS, _refuse_hook)
    module.__dict__ |= {"load_state_dict": _refuse_weights, "_apply": _refuse_move}
    module.__dict__["train"] = partial(_train, BackReference(module))


def _refuse_hook(*args: Any, **kwargs: Any) -> NoReturn:
    raise ConfigError(
        "a model that is optimized for inference does not run hooks, as its modules are not called one by one; "
        f"{REMEDY}. Decoding runs its hooks on the encoder, head, and decoder's attention, norms and linear layers, "
        "not on the model, the decoder, its blocks and feed-forward layers. Attention weights: allyouneed.inspection"
    )


def _refuse_weights(*args: Any, **kwargs: Any) -> NoReturn:
    raise ConfigError(f"the weights of a model that is optimized for inference are packed and cannot change; {REMEDY}")


def _refuse_move(*args: Any, **kwargs: Any) -> NoReturn:
    raise ConfigError(
        "a model that is optimized for inference cannot change its device or dtype; load it where it should run: "
        "allyouneed.load(path, device=...)"
    )


def _train(module: BackReference[nn.Module], mode: bool = True) -> nn.Module:
    if mode:
        raise ConfigError(f"a model that is optimized for inference cannot be trained; {REMEDY}")
    return module()
