"""Projections of a few rows, y = x W^T + b, on packed weights (products.c)."""

import copy
import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch import Tensor

from allyouneed.kernels.build import functions
from allyouneed.kernels.steps import among, require_shared

PANEL = 32  # outputs that products.c packs together
LINE = 64  # bytes of a cache line
FEW = 512
PIECE = 8 * PANEL  # outputs that are converted to float32 at once
KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # of weights, as numbered in products.c
CODED = 3  # bfloat16 in 12 bits
LARGE = 1 << 18  # numbers of a matrix that is coded; models of smaller ones fit into the caches, where this is slower


def few_rows(rows: int) -> bool:
    """Return True if packed weights are as fast as torch, whose products use several threads, for this many rows."""
    return rows <= FEW or torch.get_num_threads() == 1


@contextmanager
def several_threads(count: int) -> Iterator[None]:
    """Share the large products of the calling thread among this many threads. The results are the same."""
    functions().use_threads(threads=count)
    try:
        yield
    finally:
        functions().use_threads(threads=1)


class Packed:
    """A matrix (N, D) and a bias (N), packed for `project`. Weights in half precision stay so.

    Large matrices in bfloat16 are stored in 12 bits, without loss. Packed weights do not change, so copies share them.
    """

    def __init__(self, weight_ND: Tensor, bias_N: Tensor | None, large: int = LARGE) -> None:
        N, D = _shape(weight_ND, bias_N)
        self.outputs, self.inputs, self.kind = N, D, KINDS[weight_ND.dtype]
        self.bias = _padded(torch.zeros(N) if bias_N is None else bias_N)
        coded = weight_ND.dtype is torch.bfloat16 and weight_ND.numel() >= large
        if coded and (size := functions().coded_bytes(**_source(weight_ND))):
            self.kind, self.packed = CODED, _zeros(size, torch.uint8)
            functions().pack_coded(packed=self.packed.data_ptr(), **_source(weight_ND))
        else:
            self.packed = _zeros(-(-N // PANEL) * PANEL * D, weight_ND.dtype)
            _pack(weight_ND, self.packed)

    def __deepcopy__(self, memo: object) -> "Packed":
        return self

    def rows(self, output: Tensor) -> Tensor:
        """Return the weights of some outputs (...) in float32: (..., D)."""
        if not among(output, self.outputs):
            raise IndexError(f"some rows are not among {self.outputs}")
        rows, output = torch.empty(*output.shape, self.inputs), output.contiguous()
        places = {"output": output.data_ptr(), "rows": rows.data_ptr(), "count": output.numel(), "inputs": self.inputs}
        if self.kind == CODED:
            functions().unpack_coded(packed=self.packed.data_ptr(), **places)
        else:
            functions().unpack_rows(packed=self.packed.data_ptr(), kind=self.kind, **places)
        return rows

    def whole(self) -> Tensor:
        """Return the matrix (N, D) in float32."""
        if self.kind == CODED:
            return self.rows(torch.arange(self.outputs))
        panels = self.packed.view(-1, self.inputs, PANEL)
        if self.kind:  # output j is beside output 16 + j
            panels = panels.unflatten(2, (-1, 2)).transpose(2, 3).flatten(2)
        return panels.transpose(0, 1).flatten(1)[:, : self.outputs].float().T

    def some(self, output_N: Tensor) -> "Packed":
        """Return some of the outputs, in the given order."""
        if not among(output_N, self.outputs):
            raise ValueError(f"some outputs are not among {self.outputs}")
        some, N, output_N = copy.copy(self), len(output_N), output_N.contiguous()
        # Not from the arena, which is never freed in part: these weights live for one batch.
        some.outputs, some.packed = N, torch.zeros(-(-N // PANEL) * PANEL * self.inputs)
        some.bias, some.kind = _padded(self.bias[output_N]), 0
        if self.kind:
            _pack(self.rows(output_N), some.packed)
        else:
            functions().pack_some(
                packed=self.packed.data_ptr(),
                output=output_N.data_ptr(),
                some=some.packed.data_ptr(),
                outputs=N,
                inputs=self.inputs,
            )
        return some

    def project(self, x: Tensor) -> Tensor:
        """Return x W^T + b of (..., D)."""
        x_BD = _rows(x)
        B, D = x_BD.shape
        _require_width(D, self.inputs)
        out_BN = x.new_empty(B, self.outputs)
        tiles = x.new_empty(_tile_rows(B) * D)
        functions().project(
            x=x_BD.data_ptr(),
            packed=self.packed.data_ptr(),
            kind=self.kind,
            bias=self.bias.data_ptr(),
            y=out_BN.data_ptr(),
            rows=B,
            inputs=D,
            outputs=self.outputs,
            x_row=x_BD.stride(0),
            relu=False,
            tiles=tiles.data_ptr(),
        )
        return _like(x, out_BN)


class PackedInt8:
    """The same in int8: a quarter of the memory. Each row has its own scale; errors are about 1 % of a row."""

    def __init__(self, weight_ND: Tensor, bias_N: Tensor | None, scale_N: Tensor | None = None) -> None:
        """Pack floats, or bytes that are rounded already and their `scale_N`."""
        N, D = _shape(weight_ND, bias_N, rounded=scale_N is not None)
        self.outputs, self.inputs, panels = N, D, -(-N // PANEL)
        self._row = 4 * -(-D // 4)  # bytes
        self.packed = _zeros(panels * PANEL * self._row, torch.int8)
        self.scale = torch.zeros(panels * PANEL)
        self.sums = torch.zeros(panels * PANEL, dtype=torch.int32)
        self.bias = _padded(torch.zeros(N) if bias_N is None else bias_N)
        if scale_N is not None:
            self._take(weight_ND, scale_N)
            return
        piece = _temporary(PIECE * D)
        for number, part in enumerate(weight_ND.split(PIECE)):
            self._pack_piece(piece[: part.numel()].view_as(part).copy_(part), number * PIECE)

    def _take(self, bytes_ND: Tensor, scale_N: Tensor) -> None:
        self.scale[: self.outputs] = scale_N
        panels = self.packed.view(-1, self._row // 4, PANEL, 4)
        for number, part_ND in enumerate(bytes_ND.split(PANEL)):
            padded = torch.nn.functional.pad(part_ND, (0, self._row - self.inputs))
            panels[number, :, : len(part_ND)] = padded.unflatten(1, (-1, 4)).transpose(0, 1)
            begin = number * PANEL  # the sums of a part: torch copies what it sums to the type of the sum
            self.sums[begin : begin + len(part_ND)] = part_ND.sum(dim=1, dtype=torch.int32)

    def _pack_piece(self, weight_ND: Tensor, begin: int) -> None:
        w_output, w_input = weight_ND.stride()
        functions().pack_int8(
            w=weight_ND.data_ptr(),
            packed=self.packed[begin * self._row :].data_ptr(),
            scale=self.scale[begin:].data_ptr(),
            sums=self.sums[begin:].data_ptr(),
            outputs=len(weight_ND),
            inputs=self.inputs,
            w_output=w_output,
            w_input=w_input,
        )

    def __deepcopy__(self, memo: object) -> "PackedInt8":
        return self

    def rows(self, output: Tensor) -> Tensor:
        """Return the rounded weights of some outputs (...) in float32: (..., D)."""
        panels = self.packed.view(-1, self._row // 4, PANEL, 4)
        rows = panels[output // PANEL, :, output % PANEL].flatten(-2)[..., : self.inputs]
        return rows.float() * self.scale[output].unsqueeze(-1)

    def whole(self) -> Tensor:
        """Return the rounded matrix (N, D) in float32."""
        by_output = self.packed.view(-1, self._row // 4, PANEL, 4).transpose(1, 2).reshape(-1, self._row)
        return by_output[: self.outputs, : self.inputs].float() * self.scale[: self.outputs, None]

    def project(self, x: Tensor) -> Tensor:
        """Return an approximation of x W^T + b of (..., D)."""
        x_BD = _rows(x)
        B, D = x_BD.shape
        _require_width(D, self.inputs)
        out_BN = x.new_empty(B, self.outputs)
        bytes_BE = torch.empty(B, self._row, dtype=torch.uint8)
        scale_B = x.new_empty(B)
        functions().project_int8(
            x=x_BD.data_ptr(),
            packed=self.packed.data_ptr(),
            scale=self.scale.data_ptr(),
            sums=self.sums.data_ptr(),
            bias=self.bias.data_ptr(),
            bytes=bytes_BE.data_ptr(),
            x_scale=scale_B.data_ptr(),
            y=out_BN.data_ptr(),
            rows=B,
            inputs=D,
            outputs=self.outputs,
            x_row=x_BD.stride(0),
            relu=False,
        )
        return _like(x, out_BN)


class LinesInt8:
    """The same int8 weights, one output after another in whole cache lines: for lists of outputs."""

    def __init__(self, packed: PackedInt8) -> None:
        self.outputs, self.inputs = packed.outputs, packed.inputs
        self.scale, self.sums, self.bias = packed.scale, packed.sums, packed.bias
        row = 4 * -(-self.inputs // 4)
        by_output = packed.packed.view(-1, row // 4, PANEL, 4).transpose(1, 2).reshape(-1, row)
        self.lines = torch.nn.functional.pad(by_output, (0, -row % LINE)).contiguous()

    def project(self, x: Tensor, lists: "OutputLists") -> Tensor:
        """Return (B, L): the listed outputs of each group of rows, and minus infinity beyond the end of a list."""
        found = (lists.outputs, x.shape[-1], x.dtype, x.device.type)
        right = (self.outputs, self.inputs, torch.float32, "cpu")
        if found != right:
            raise ValueError(f"lists of outputs, inputs, type and device {found}; should be {right}")
        x_BD, lines = _rows(x), self.lines
        (N, L), B = lists.output_NL.shape, x_BD.shape[0]
        require_shared(B, N)
        out_BL, scale_S = x.new_empty(B, L), x.new_empty(B // N)
        bytes_SE = torch.zeros(B // N, lines.shape[1], dtype=torch.uint8)
        functions().project_lists(
            x=x_BD.data_ptr(),
            w=lines.data_ptr(),
            scale=self.scale.data_ptr(),
            sums=self.sums.data_ptr(),
            bias=self.bias.data_ptr(),
            output=lists.output_NL.data_ptr(),
            count=lists.count_N.data_ptr(),
            bytes=bytes_SE.data_ptr(),
            x_scale=scale_S.data_ptr(),
            y=out_BL.data_ptr(),
            lists=N,
            sharing=B // N,
            inputs=self.inputs,
            columns=L,
            lines=lines.shape[1] // LINE,
            x_row=x_BD.stride(0),
        )
        return _like(x, out_BL)


class OutputLists:
    """The first `count` numbers of each row of `output`: the outputs that each of N groups of rows computes."""

    def __init__(self, output_NL: Tensor, count_N: Tensor, outputs: int) -> None:
        N, L = output_NL.shape
        if not among(output_NL, outputs):
            raise ValueError(f"some outputs are not among {outputs}")
        if count_N.shape != (N,) or not among(count_N, L + 1):
            raise ValueError(f"lists should have between 0 and {L} outputs")
        self.output_NL, self.count_N, self.outputs = output_NL.contiguous(), count_N.contiguous(), outputs

    def only(self, group_M: Tensor) -> "OutputLists":
        """Return some groups of rows."""
        some = copy.copy(self)
        some.output_NL, some.count_N = self.output_NL[group_M], self.count_N[group_M]
        return some


class _Arena:
    """Zeros for packed weights, side by side in large pages.

    A step reads all weights once, which is far more than the processor's table of page addresses covers; with pages of
    2 MiB a step of one row takes a quarter less time.
    """

    PAGE, CHUNK = 2 << 20, 32 << 20

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left = torch.empty(0, dtype=torch.uint8)

    def take(self, count: int, dtype: torch.dtype) -> Tensor:
        size = -(-count * dtype.itemsize // 64) * 64
        with self._lock:
            if size > len(self._left):
                chunk = mmap.mmap(-1, max(self.CHUNK, size) + self.PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                if hasattr(mmap, "MADV_HUGEPAGE"):
                    chunk.madvise(mmap.MADV_HUGEPAGE)
                fresh = torch.frombuffer(chunk, dtype=torch.uint8)  # keeps the memory alive while it is used
                self._left = fresh[-fresh.data_ptr() % self.PAGE :]
            taken, self._left = self._left[:size], self._left[size:]
        return taken[: count * dtype.itemsize].view(dtype)


_ARENA = _Arena()


def _temporary(count: int) -> Tensor:
    """Return floats that go back to the system when they are freed; many holes in the heap would not."""
    return torch.frombuffer(mmap.mmap(-1, count * 4, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=torch.float32)


def _zeros(count: int, dtype: torch.dtype) -> Tensor:
    if functions().sanitizer:  # the sanitizer sees the bounds of separate allocations only
        return torch.zeros(count, dtype=dtype)
    return _ARENA.take(count, dtype)


@lru_cache(maxsize=1024)
def _tile_rows(rows: int) -> int:
    tile_rows: int = functions().tile_rows(rows=rows)
    return tile_rows


def _require_width(found: int, right: int) -> None:
    if found != right:
        raise ValueError(f"rows of {found} numbers; the weights take {right}")


def _shape(weight_ND: Tensor, bias_N: Tensor | None, rounded: bool = False) -> tuple[int, int]:
    if (weight_ND.dtype is not torch.int8 if rounded else weight_ND.dtype not in KINDS) or not weight_ND.is_cpu:
        raise ValueError(
            f"weights in {weight_ND.dtype} on {weight_ND.device}; should be float32, bfloat16 or float16 on the CPU"
        )
    N, D = weight_ND.shape
    if bias_N is not None and (bias_N.shape != (N,) or bias_N.dtype is not torch.float32):
        raise ValueError(f"a bias of {tuple(bias_N.shape)} in {bias_N.dtype}; should be {N} numbers in float32")
    return N, D


def _rows(x: Tensor) -> Tensor:
    """Return x as rows (B, D), each of them contiguous."""
    x_BD = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    return x_BD if x_BD.stride(1) == 1 else x_BD.contiguous()


def _like(x: Tensor, out_BN: Tensor) -> Tensor:
    """Return rows of outputs in the shape of x: (..., N)."""
    return out_BN if x.dim() == 2 else out_BN.view(*x.shape[:-1], out_BN.shape[1])


def _pack(weight_ND: Tensor, packed: Tensor) -> None:
    pack = functions().pack if weight_ND.dtype is torch.float32 else functions().pack_halves
    pack(packed=packed.data_ptr(), **_source(weight_ND))


def _source(weight_ND: Tensor) -> dict[str, int]:
    (outputs, inputs), (w_output, w_input) = weight_ND.shape, weight_ND.stride()
    address = weight_ND.data_ptr()
    return {"w": address, "outputs": outputs, "inputs": inputs, "w_output": w_output, "w_input": w_input}


def _padded(x_N: Tensor) -> Tensor:
    return torch.nn.functional.pad(x_N.detach(), (0, -len(x_N) % PANEL)).contiguous()
