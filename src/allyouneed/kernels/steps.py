"""The small operations of a decoding step, which has one position for each row (steps.c)."""

import torch
from torch import Tensor

from allyouneed.kernels.build import functions

FEW_NUMBERS = 64  # for so few, a loop is faster than torch's operations


def add_norm(x: Tensor, y: Tensor | None, gamma_D: Tensor, beta_D: Tensor | None, epsilon: float) -> Tensor:
    """Return Norm(x + y), both (..., D), or Norm(x): layer norm, or RMS norm without beta."""
    x = x.contiguous()
    y = None if y is None else y.contiguous()
    out = torch.empty_like(x)
    D = x.shape[-1]
    if gamma_D.dtype is not torch.float32 or gamma_D.numel() != D:
        raise ValueError(f"a norm of {gamma_D.numel()} {gamma_D.dtype} numbers; should be {D} numbers in float32")
    functions().add_norm(
        x=x.data_ptr(),
        y=None if y is None else y.data_ptr(),
        gamma=gamma_D.data_ptr(),
        beta=None if beta_D is None else beta_D.data_ptr(),
        out=out.data_ptr(),
        rows=x.numel() // D,
        width=D,
        epsilon=epsilon,
    )
    return out


def attend(
    q_BN: Tensor,
    k_MHSK: Tensor,
    v_MHSR: Tensor,
    scale: float,
    visible_MS: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Return softmax(q k^T scale + bias) v for one query of each row and head: (B, H R).

    Each memory is read by B / M consecutive rows. Fully masked rows return zeros. `bias` broadcasts to (B, H, S). The
    last dimension of every tensor is contiguous.
    """
    B, M, H, S, K, R = q_BN.shape[0], *k_MHSK.shape, v_MHSR.shape[-1]
    require_shared(B, M)
    if k_MHSK.dtype is not torch.float32 or v_MHSR.dtype is not torch.float32:
        raise ValueError(f"keys in {k_MHSK.dtype}, values in {v_MHSR.dtype}; should be float32")
    visible_MS = None if visible_MS is None else visible_MS.expand(M, S).contiguous()
    out_BL = q_BN.new_empty(B, H * R)
    score_HS = q_BN.new_empty(H, S)
    bias_row, bias_head = 0, 0
    if bias is not None:
        bias = bias.expand(B, H, S)
        bias = bias if bias.stride(2) == 1 else bias.contiguous()
        bias_row, bias_head, _ = bias.stride()
    k_memory, k_head, k_slot, _ = k_MHSK.stride()
    v_memory, v_head, v_slot, _ = v_MHSR.stride()
    functions().attend(
        q=q_BN.data_ptr(),
        k=k_MHSK.data_ptr(),
        v=v_MHSR.data_ptr(),
        visible=None if visible_MS is None else visible_MS.data_ptr(),
        bias=None if bias is None else bias.data_ptr(),
        memory_of_row=None,
        row_of_slot=None,
        out=out_BL.data_ptr(),
        score=score_HS.data_ptr(),
        rows=B,
        sharing=B // M,
        heads=H,
        slots=S,
        key_width=K,
        value_width=R,
        q_row=q_BN.stride(0),
        k_memory=k_memory,
        k_head=k_head,
        k_slot=k_slot,
        v_memory=v_memory,
        v_head=v_head,
        v_slot=v_slot,
        visible_memory=0 if visible_MS is None else S,
        bias_row=bias_row,
        bias_head=bias_head,
        out_row=H * R,
        group=1,
        scale=scale,
    )
    return out_BL


def require_shared(rows: int, memories: int) -> None:
    """Raise ValueError unless the rows can be divided among the memories; C computes addresses from both."""
    if not rows or not memories or rows % memories:
        raise ValueError(
            f"{rows} rows cannot share {memories} memories; continue a state with the rows it was made for"
        )


def gather(x_PSN: Tensor, y_BSN: Tensor, order_BS: Tensor) -> None:
    """Write x[order[b, s], s] to y[b, s].

    Any strides are fine, except that the last dimension of x and y is contiguous; an order may be expanded.
    """
    P, S, N = x_PSN.shape
    if y_BSN.shape != (*order_BS.shape, N) or order_BS.shape[1] != S or x_PSN.stride(2) != 1 or y_BSN.stride(2) != 1:
        raise ValueError(f"{tuple(order_BS.shape)} of {tuple(x_PSN.shape)} cannot be {tuple(y_BSN.shape)}")
    if not among(order_BS, P):
        raise ValueError(f"an order has row numbers that are not among {P}")
    order_row, order_slot = order_BS.stride()
    functions().gather(
        x=x_PSN.data_ptr(),
        y=y_BSN.data_ptr(),
        order=order_BS.data_ptr(),
        rows=y_BSN.shape[0],
        slots=S,
        width=N,
        order_row=order_row,
        order_slot=order_slot,
        x_row=x_PSN.stride(0),
        x_slot=x_PSN.stride(1),
        y_row=y_BSN.stride(0),
        y_slot=y_BSN.stride(1),
    )


def among(number: Tensor, count: int) -> bool:
    """Return True if C may compute addresses from these numbers: 0 to count - 1, as 64-bit integers on the CPU."""
    if number.dtype != torch.long or number.device.type != "cpu":
        return False
    if number.numel() <= FEW_NUMBERS:
        return all(0 <= one < count for one in number.flatten().tolist())
    return 0 <= int(number.min()) <= int(number.max()) < count


def top_tokens(logits_BV: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` best columns of each row from column `first` on, best first.

    These are log-probabilities (B, C) among all columns, and column numbers (B, C).
    """
    logits_BV = logits_BV.contiguous()
    B, V = logits_BV.shape
    if not 0 < count <= V - first:
        raise ValueError(f"{count} best of {V - first} columns; should be 1 to {V - first}")
    logprob_BC = logits_BV.new_empty(B, count)
    token_BC = torch.empty(B, count, dtype=torch.long)
    functions().top_tokens(
        logits=logits_BV.data_ptr(),
        logprob=logprob_BC.data_ptr(),
        token=token_BC.data_ptr(),
        rows=B,
        columns=V,
        first=first,
        count=count,
    )
    return logprob_BC, token_BC


def sample_tokens(logits_BV: Tensor, first: int, temperature: float, uniform_B: Tensor) -> tuple[Tensor, Tensor]:
    """Sample a column (B) of each row from column `first` on, and return it with its log-probability (B) among all.

    `uniform_B`: a random number in [0, 1) for each row.
    """
    logits_BV, uniform_B = logits_BV.contiguous(), uniform_B.to(torch.float64).contiguous()
    B, V = logits_BV.shape
    logprob_B = logits_BV.new_empty(B)
    token_B = torch.empty(B, dtype=torch.long)
    functions().sample_tokens(
        logits=logits_BV.data_ptr(),
        uniform=uniform_B.data_ptr(),
        logprob=logprob_B.data_ptr(),
        token=token_B.data_ptr(),
        rows=B,
        columns=V,
        first=first,
        temperature=temperature,
    )
    return token_B, logprob_B
