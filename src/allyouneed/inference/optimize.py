"""Replace the parts of a model by faster ones that give the same outputs, for decoding a few positions per step.

A decoding step is bound by two things, and neither is arithmetic:

- how fast the weights stream from memory. Where there is a C compiler, projections of a few rows run on packed weights
  (kernels/products.c), in float32 or int8. Elsewhere, a projection y = x W^T reads W (out, in) by rows; with one to a
  few rows of x torch's kernels stream it faster if the *inputs* are the slow dimension (32 rows, 256 to 768: 109 -> 84
  microseconds);
- what Python does between the operations: `nn.Module.__call__` looks for hooks, and attributes that are modules or
  parameters are found only after the normal lookup has failed. That was a sixth of a step. A stack of ordinary blocks
  is one call (inference/fused_stack.py).

Softmax attention, feed-forward layers, tables and the head are most of a Transformer. Their weights are packed at once,
one after another, and the originals are released: a model takes as much memory as its file. Tables and weights in half
precision stay so; the kernels convert them in registers. Other layers keep their weights and pack them on first use.

Shapes and parameter names stay the same, and so do the outputs, except with int8. Gradients stay correct: with
gradients enabled, torch computes everything, and released weights are unpacked first (in int8: the rounded ones). What
an optimized model cannot do, it refuses: training mode, hooks (its modules are not called one by one),
`load_state_dict`, and another device or dtype. It does not notice parameters that are edited in place. Do not edit
them: packed copies keep the old values, and a released parameter holds no numbers.
"""

from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from allyouneed import kernels
from allyouneed.block import Block, FeedForward
from allyouneed.errors import ConfigError
from allyouneed.inference.attention import SoftmaxStep
from allyouneed.inference.back_reference import BackReference
from allyouneed.inference.fused_stack import fuse, is_fusable
from allyouneed.inference.head import OptimizedHead
from allyouneed.inference.layers import OptimizedLinear, OptimizedNorm, StoredTable, add_and_norm
from allyouneed.mixers.softmax import Softmax
from allyouneed.models.base import Head, Model
from allyouneed.models.parts.stack import Embedding, Stack
from allyouneed.weights import scale_of

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
    projections and head compute in int8; so they do if the weights are stored in int8.
    """
    if is_optimized(model):
        raise ConfigError("the model is already optimized for inference")
    # Checked even if the result does not matter: the kernels are compiled now, not during the first request.
    if not kernels.usable(model.head.like.float()) and int8:
        raise ConfigError("int8 needs a CPU and a C compiler (cc, gcc or clang) that can be found")
    _require_no_hooks(model)
    compact = compact_parameters(model)
    int8 = int8 or any(scale_of(parameter) is not None for parameter in compact)
    _replace_head(model, int8, compact)  # first: it is the largest, and needs its original for a while
    for module in list(model.modules()):
        _replace_layers(module, int8, compact)
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
        refuse_changes(module)


def is_optimized(model: nn.Module) -> bool:
    """Return whether a model is optimized for inference, and so in evaluation mode for good."""
    return "load_state_dict" in model.__dict__


@torch.no_grad()
def compact_parameters(model: Model) -> set[Tensor]:
    """Return the parameters that may be mapped, in half precision or in int8 when the model is optimized."""
    return packable_parameters(model) if kernels.usable(torch.empty(0)) else set()


def packable_parameters(model: Model) -> set[Tensor]:
    """Return the weights of softmax attention and feed-forward layers, embeddings of Transformers and their head."""
    owners: dict[Tensor, list[nn.Module]] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is None or parameter.device.type not in ("cpu", "meta"):
                continue
            if parameter.dtype in kernels.KINDS or scale_of(parameter) is not None:
                owners.setdefault(parameter, []).append(module)
    found = set[Tensor]()
    for module in model.modules():
        if isinstance(module, Softmax | FeedForward):
            layers = [layer for layer in module.children() if type(layer) is nn.Linear]
            found |= {layer.weight for layer in layers if owners.get(layer.weight) == [layer]}
    tables: set[Tensor] = {module.weight_VD for module in model.modules() if isinstance(module, Embedding)} | {
        model.head.weight_VD
    }
    for table in tables & owners.keys():
        if all(isinstance(owner, Embedding | Head) for owner in owners[table]):
            found.add(table)
    return found


def _replace_head(model: Model, int8: bool, compact: set[Tensor]) -> None:
    table = model.head.weight_VD
    tied = [module for module in model.modules() if isinstance(module, Embedding) and module.weight_VD is table]
    names = [name for name, one in model.named_parameters(remove_duplicate=False) if one is table]
    rounded = int8 and scale_of(table) is None
    keep = table in compact and rounded and bool(tied)  # the embedding is not rounded
    release = table in compact and not keep
    if keep:
        table.data = table.data.clone()  # it may be mapped
    model.head = OptimizedHead(model.head, int8, tied=len(names) > 1, release=release, keep=keep)
    for module in [module for module in model.modules() if isinstance(module, Embedding)]:
        own = module.weight_VD
        if own is table and release:
            module.__dict__["look_up"] = model.head.product.rows
        elif own in compact:
            own.data = own.data.clone() if own is not table else own.data
            if own.dtype is not torch.float32:
                module.__dict__["look_up"] = StoredTable(own)


def _replace_layers(module: nn.Module, int8: bool, compact: set[Tensor]) -> None:
    for name, child in module.named_children():
        if type(child) is nn.Linear:
            setattr(module, name, OptimizedLinear(child, int8, release=child.weight in compact))
        elif isinstance(child, nn.LayerNorm | nn.RMSNorm):
            setattr(module, name, OptimizedNorm(child))


def _require_no_hooks(model: Model) -> None:
    for name, module in model.named_modules():
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
            raise ConfigError(
                f"{name or 'the model'} has hooks, which an optimized model does not run; remove them, or {REMEDY}"
            )


def refuse_changes(module: nn.Module) -> None:
    """Make a module refuse training, hooks and other weights. A model that does so counts as optimized."""
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
