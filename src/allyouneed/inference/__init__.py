"""Fast inference: packed weights, fused stacks and C kernels, put in place of a plain model's parts from outside.

Models, blocks and mixers are plain torch and do not dispatch to kernels. `optimize.py` replaces their layers
(`layers.py`, `head.py`), single decoding steps of softmax attention (`attention.py`) and whole stacks
(`fused_stack.py`). `tokens.py` picks tokens from logits.
"""
