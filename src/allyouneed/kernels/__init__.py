"""What a decoding step is made of, in C, where a C compiler is at hand; else torch does it.

A step has one position for each row: projections of a few rows (products.c), and many small operations between them
(steps.c); a whole stack of ordinary blocks is one call (stack.c, stack.py). Measured on a CPU of 2.8 GHz with
AVX-512, one thread: 32 rows through a matrix of 768 x 256 take 90 microseconds (torch: 118), of 8,000 x 256 1.1 ms
(1.65), with int8 0.3 ms; one query a row over 24 slots 54 (torch's fused attention: 150), the best word of 8,000 for 32
rows 0.17 ms (0.47).

The files are compiled once for this machine (a few seconds), into the user's cache folder, and loaded with ctypes,
which lets go of the interpreter's lock. `ALLYOUNEED_KERNELS=off` turns them off. Kernels take float32 on a CPU and give
no gradients: `usable` says whether they apply, and callers have torch's way beside.
"""

import copy
import ctypes
import hashlib
import mmap
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

HERE = Path(__file__).parent
_POINTER, _NUMBER, _FLOAT, _FLAG = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_bool
_SHARED = ("-march=native", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros")
_WIDE = ("-mprefer-vector-width=512",) if platform.machine() in ("x86_64", "AMD64") else ()
# Sums of steps may be reordered, which vectorises them; infinities and NaN keep their meaning. The tiles of products
# say themselves what is a vector; -O3 makes them no faster, and takes three times as long.
FILES = {
    "steps.c": ("-O3", "-fassociative-math", "-freciprocal-math"),
    "products.c": ("-O2", "-ftree-vectorize"),
    "stack.c": ("-O2", "-ftree-vectorize"),
}
FUNCTIONS = {
    "add_norm": (*[_POINTER] * 5, *[_NUMBER] * 2, _FLOAT),
    "attend": (*[_POINTER] * 9, *[_NUMBER] * 17, _FLOAT),
    "gather": (*[_POINTER] * 3, *[_NUMBER] * 9),
    "top_words": (*[_POINTER] * 3, *[_NUMBER] * 4),
    "draw_words": (*[_POINTER] * 4, *[_NUMBER] * 3, _FLOAT),
    "pack": (*[_POINTER] * 2, *[_NUMBER] * 4),
    "pack_some": (*[_POINTER] * 3, *[_NUMBER] * 2),
    "project": (*[_POINTER] * 4, *[_NUMBER] * 4, _FLAG, _POINTER),
    "pack_int8": (*[_POINTER] * 4, *[_NUMBER] * 4),
    "project_int8": (*[_POINTER] * 8, *[_NUMBER] * 4, _FLAG),
    "project_lists": (*[_POINTER] * 10, *[_NUMBER] * 6),
    "advance_stack": (_POINTER, _NUMBER, *[_POINTER] * 3, _NUMBER, _POINTER, _NUMBER, *[_POINTER] * 8),
    "encode_stack": (_POINTER, _NUMBER, *[_POINTER] * 3, *[_NUMBER] * 2, *[_POINTER] * 4),
    "room_for_stack": (_POINTER, *[_NUMBER] * 3),
    "room_for_tiles": (_NUMBER,),
}
PANEL = 32  # outputs that products.c packs together
LINE = 64  # bytes
FEW = 512
COMPILE_SECONDS = 120


def usable(x: Tensor) -> bool:
    """Whether kernels can take a tensor: float32 on a CPU, no gradients wanted, and a compiler was found."""
    return (
        x.dtype is torch.float32 and not torch.is_grad_enabled() and x.device.type == "cpu" and _library() is not None
    )


def few(rows: int) -> bool:
    """Whether so many rows go through packed weights as fast as through torch, whose products use several threads."""
    return rows <= FEW or torch.get_num_threads() == 1


def add_norm(x: Tensor, y: Tensor | None, gamma_D: Tensor, beta_D: Tensor | None, epsilon: float) -> Tensor:
    """Norm(x + y), both (..., D), or Norm(x): layer norm, or RMS norm without a beta."""
    x = x.contiguous()
    y = None if y is None else y.contiguous()
    out = torch.empty_like(x)
    D = x.shape[-1]
    made().add_norm(
        *(x.data_ptr(), None if y is None else y.data_ptr(), gamma_D.data_ptr()),
        *(None if beta_D is None else beta_D.data_ptr(), out.data_ptr(), x.numel() // D, D, epsilon),
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
    """softmax(q k^T scale + bias) v for one query of each row and head: (B, H R).

    B / M rows in a row read the same memory. Who sees nothing reads zero. `bias` broadcasts to (B, H, S). The last
    dimension of every tensor is contiguous.
    """
    B, M, H, S, K, R = q_BN.shape[0], *k_MHSK.shape, v_MHSR.shape[-1]
    require_shared(B, M)
    visible_MS = None if visible_MS is None else visible_MS.expand(M, S).contiguous()
    out_BL = q_BN.new_empty(B, H * R)
    score_HS = q_BN.new_empty(H, S)
    bias_at, bias_row, bias_head = None, 0, 0
    if bias is not None:
        bias = bias.expand(B, H, S)
        bias = bias if bias.stride(2) == 1 else bias.contiguous()
        bias_at, bias_row, bias_head = bias.data_ptr(), bias.stride(0), bias.stride(1)
    visible_at, visible_row = (None, 0) if visible_MS is None else (visible_MS.data_ptr(), visible_MS.stride(0))
    made().attend(
        *(q_BN.data_ptr(), k_MHSK.data_ptr(), v_MHSR.data_ptr(), visible_at, bias_at, None, None),
        *(out_BL.data_ptr(), score_HS.data_ptr(), B, B // M, H, S, K, R),
        *(q_BN.stride(0), *k_MHSK.stride()[:3], *v_MHSR.stride()[:3], visible_row, bias_row, bias_head, H * R, scale),
    )
    return out_BL


def require_shared(rows: int, memories: int) -> None:
    """Addresses are computed from these: rows that do not fit would be read and written beside what is there."""
    if not rows or not memories or rows % memories:
        raise ValueError(f"{rows} rows cannot share {memories} memories; a state goes on with the rows it was made for")


def gather(x_PSN: Tensor, y_BSN: Tensor, order_BS: Tensor) -> None:
    """Writes x[order[b, s], s] to y[b, s]. Tensors may lie anyhow, but for their last dimension; an order may be
    expanded."""
    P, S, N = x_PSN.shape
    if y_BSN.shape != (*order_BS.shape, N) or order_BS.shape[1] != S or x_PSN.stride(2) != 1 or y_BSN.stride(2) != 1:
        raise ValueError(f"{tuple(order_BS.shape)} of {tuple(x_PSN.shape)} cannot be {tuple(y_BSN.shape)}")
    if order_BS.numel() and not 0 <= int(order_BS.min()) <= int(order_BS.max()) < P:
        raise ValueError(f"an order names rows that are not among {P}")
    made().gather(
        *(x_PSN.data_ptr(), y_BSN.data_ptr(), order_BS.data_ptr(), *y_BSN.shape, *order_BS.stride()),
        *(*x_PSN.stride()[:2], *y_BSN.stride()[:2]),
    )


def top_words(logits_BV: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """The `count` best columns of each row from `first` on, best first: log-probabilities (B, C) among all, numbers."""
    logits_BV = logits_BV.contiguous()
    B, V = logits_BV.shape
    logprob_BC = logits_BV.new_empty(B, count)
    word_BC = torch.empty(B, count, dtype=torch.long)
    made().top_words(logits_BV.data_ptr(), logprob_BC.data_ptr(), word_BC.data_ptr(), B, V, first, count)
    return logprob_BC, word_BC


def draw_words(logits_BV: Tensor, first: int, temperature: float, uniform_B: Tensor) -> tuple[Tensor, Tensor]:
    """A column (B) of each row from `first` on, drawn by a number in [0, 1), and its log-probability (B) among all."""
    logits_BV, uniform_B = logits_BV.contiguous(), uniform_B.to(torch.float64).contiguous()
    B, V = logits_BV.shape
    logprob_B = logits_BV.new_empty(B)
    word_B = torch.empty(B, dtype=torch.long)
    made().draw_words(
        *(logits_BV.data_ptr(), uniform_B.data_ptr(), logprob_B.data_ptr(), word_B.data_ptr()),
        *(B, V, first, temperature),
    )
    return word_B, logprob_B


class Packed:
    """A matrix (N, D) and a bias (N), packed for `project`."""

    def __init__(self, weight_ND: Tensor, bias_N: Tensor | None) -> None:
        N, D = weight_ND.shape
        self.outputs, self.inputs, panels = N, D, -(-N // PANEL)
        self.packed = _room(panels * PANEL * D, torch.float32)
        self.bias = _padded(torch.zeros(N) if bias_N is None else bias_N)
        made().pack(weight_ND.data_ptr(), self.packed.data_ptr(), N, D, *weight_ND.stride())

    def some(self, output_N: Tensor) -> "Packed":
        """Some of the outputs, in the given order."""
        if not _among(output_N, self.outputs):
            raise ValueError(f"some outputs are not among {self.outputs}")
        few, N, output_N = copy.copy(self), len(output_N), output_N.contiguous()
        # Not from `_room`, which is for what stays: these are there for one batch.
        few.outputs, few.packed = N, torch.zeros(-(-N // PANEL) * PANEL * self.inputs)
        few.bias = _padded(self.bias[output_N])
        made().pack_some(self.packed.data_ptr(), output_N.data_ptr(), few.packed.data_ptr(), N, self.inputs)
        return few

    def project(self, x: Tensor) -> Tensor:
        """x W^T + b of (..., D)."""
        x_BD = _rows(x)
        B, call = x_BD.shape[0], made()
        out_BN = x.new_empty(B, self.outputs)
        tiles = x.new_empty(call.room_for_tiles(B) * self.inputs)
        call.project(
            *(x_BD.data_ptr(), self.packed.data_ptr(), self.bias.data_ptr(), out_BN.data_ptr()),
            *(B, self.inputs, self.outputs, x_BD.stride(0), False, tiles.data_ptr()),
        )
        return out_BN if x.dim() == 2 else out_BN.view(*x.shape[:-1], self.outputs)


class PackedInt8:
    """The same in bytes: a quarter of the memory. Rows are scaled each by itself; errors are about 1 % of a row."""

    def __init__(self, weight_ND: Tensor, bias_N: Tensor | None) -> None:
        N, D = weight_ND.shape
        self.outputs, self.inputs, panels = N, D, -(-N // PANEL)
        self._row = 4 * -(-D // 4)  # bytes
        self.packed = _room(panels * PANEL * self._row, torch.int8)
        self.scale = torch.zeros(panels * PANEL)
        self.sums = torch.zeros(panels * PANEL, dtype=torch.int32)
        self.bias = _padded(torch.zeros(N) if bias_N is None else bias_N)
        made().pack_int8(
            *(weight_ND.data_ptr(), self.packed.data_ptr(), self.scale.data_ptr(), self.sums.data_ptr()),
            *(N, D, *weight_ND.stride()),
        )

    def project(self, x: Tensor) -> Tensor:
        """x W^T + b of (..., D), nearly."""
        x_BD = _rows(x)
        B = x_BD.shape[0]
        out_BN = x.new_empty(B, self.outputs)
        bytes_BE = torch.empty(B, self._row, dtype=torch.uint8)
        scale_B = x.new_empty(B)
        made().project_int8(
            *(x_BD.data_ptr(), self.packed.data_ptr(), self.scale.data_ptr(), self.sums.data_ptr()),
            *(self.bias.data_ptr(), bytes_BE.data_ptr(), scale_B.data_ptr(), out_BN.data_ptr()),
            *(B, self.inputs, self.outputs, x_BD.stride(0), False),
        )
        return out_BN if x.dim() == 2 else out_BN.view(*x.shape[:-1], self.outputs)


class LinesInt8:
    """Such weights, each rounded as it is there, one output after another in whole lines of the cache: for lists."""

    def __init__(self, packed: PackedInt8) -> None:
        self.outputs, self.inputs = packed.outputs, packed.inputs
        self.scale, self.sums, self.bias = packed.scale, packed.sums, packed.bias
        row = 4 * -(-self.inputs // 4)
        by_output = packed.packed.view(-1, row // 4, PANEL, 4).transpose(1, 2).reshape(-1, row)
        self.lines = torch.nn.functional.pad(by_output, (0, -row % LINE)).contiguous()

    def project(self, x: Tensor, lists: "OutputLists") -> Tensor:
        """Outputs (B, L) of their own for N groups of rows, and minus infinity behind the end of a list."""
        found = (lists.outputs, x.shape[-1], x.dtype, x.device.type)
        right = (self.outputs, self.inputs, torch.float32, "cpu")
        if found != right:
            raise ValueError(f"lists of outputs, inputs, type and device {found}; should be {right}")
        x_BD, lines = _rows(x), self.lines
        (N, L), B = lists.output_NL.shape, x_BD.shape[0]
        require_shared(B, N)
        out_BL, scale_S = x.new_empty(B, L), x.new_empty(B // N)
        bytes_SE = torch.zeros(B // N, lines.shape[1], dtype=torch.uint8)
        made().project_lists(
            *(x_BD.data_ptr(), lines.data_ptr(), self.scale.data_ptr(), self.sums.data_ptr(), self.bias.data_ptr()),
            *(lists.output_NL.data_ptr(), lists.count_N.data_ptr(), bytes_SE.data_ptr(), scale_S.data_ptr()),
            *(out_BL.data_ptr(), N, B // N, self.inputs, L, lines.shape[1] // LINE, x_BD.stride(0)),
        )
        return out_BL if x.dim() == 2 else out_BL.view(*x.shape[:-1], L)


class OutputLists:
    """Of so many outputs the first `count` of a row of `output`, for each of N groups of rows."""

    def __init__(self, output_NL: Tensor, count_N: Tensor, outputs: int) -> None:
        N, L = output_NL.shape
        if not _among(output_NL, outputs):
            raise ValueError(f"some outputs are not among {outputs}")
        if count_N.shape != (N,) or not _among(count_N, L + 1):
            raise ValueError(f"lists should have between 0 and {L} outputs")
        self.output_NL, self.count_N, self.outputs = output_NL.contiguous(), count_N.contiguous(), outputs

    def only(self, group_M: Tensor) -> "OutputLists":
        """Some groups of rows."""
        some = copy.copy(self)
        some.output_NL, some.count_N = self.output_NL[group_M], self.count_N[group_M]
        return some


class _Rooms:
    """Zeros for packed weights, side by side in large pages.

    A step reads all weights once, far more than the processor remembers page addresses for; with pages of 2 MiB a step
    of one row takes a quarter less.
    """

    PAGE, CHUNK = 2 << 20, 32 << 20

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left = torch.empty(0, dtype=torch.uint8)

    def take(self, count: int, dtype: torch.dtype) -> Tensor:
        size = -(-count * dtype.itemsize // 64) * 64
        with self._lock:
            if size > len(self._left):
                chunk = mmap.mmap(-1, max(self.CHUNK, size) + self.PAGE)
                if hasattr(mmap, "MADV_HUGEPAGE"):
                    chunk.madvise(mmap.MADV_HUGEPAGE)
                fresh = torch.frombuffer(chunk, dtype=torch.uint8)  # keeps the memory as long as it is used
                self._left = fresh[-fresh.data_ptr() % self.PAGE :]
            taken, self._left = self._left[:size], self._left[size:]
        return taken[: count * dtype.itemsize].view(dtype)


_room = _Rooms().take


def _among(number: Tensor, count: int) -> bool:
    """Whether C may compute addresses from these: 0 to count - 1, in 64 bits, where it can read them."""
    if number.dtype != torch.long or number.device.type != "cpu":
        return False
    return not number.numel() or 0 <= int(number.min()) <= int(number.max()) < count


def _rows(x: Tensor) -> Tensor:
    """As rows (B, D) whose numbers follow each other."""
    x_BD = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    return x_BD if x_BD.stride(1) == 1 else x_BD.contiguous()


def _padded(x_N: Tensor) -> Tensor:
    return torch.nn.functional.pad(x_N.detach(), (0, -len(x_N) % PANEL)).contiguous()


def made() -> SimpleNamespace:
    """The compiled functions, for those who asked `usable` first."""
    library = _library()
    assert library is not None, "callers ask `usable` first"
    return library


@cache
def _library() -> SimpleNamespace | None:
    """The compiled functions; None if they are turned off, or cannot be made here."""
    if os.environ.get("ALLYOUNEED_KERNELS", "").lower() in ("off", "0", "no", "false"):
        return None
    compiler = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if compiler is None or os.name != "posix":
        return None
    found = SimpleNamespace()
    try:
        library = ctypes.CDLL(str(_compiled(compiler)))
    except (OSError, subprocess.SubprocessError):
        return None
    for function, types in FUNCTIONS.items():
        made = getattr(library, function)
        made.argtypes, made.restype = types, _NUMBER if function.startswith("room_for") else None
        setattr(found, function, made)
    return found


def _compiled(compiler: str) -> Path:
    """The path of the library, whose name says what it was made from and for which processor; others make their own."""
    sources = [(HERE / file).read_bytes() for file in ("kernels.h", *FILES)]
    made_from = [*sources, repr((compiler, FILES, _SHARED, _WIDE, _processor())).encode()]
    folder = _cache_folder()
    path = folder / f"kernels-{hashlib.sha256(b'|'.join(made_from)).hexdigest()[:16]}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as work:  # several processes may compile at once
            made, objects = Path(work) / path.name, [str(Path(work) / f"{file}.o") for file in FILES]
            for (file, flags), compiled in zip(FILES.items(), objects, strict=True):
                _run(compiler, *flags, *_SHARED, *_WIDE, "-c", str(HERE / file), "-o", compiled)
            _run(compiler, "-shared", *objects, "-o", str(made), "-lm")
            made.rename(path)
    return path


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_SECONDS)


def _cache_folder() -> Path:
    """A folder that nobody else can write to: what lies in it is run."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(home):
        raise OSError(f"{home}: no home folder is known")
    folder = Path(home) / "allyouneed"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = folder.stat()
    if facts.st_uid != os.getuid() or facts.st_mode & 0o022:
        raise OSError(f"{folder}: others can write to it")
    return folder


def _processor() -> str:
    """What code made for this processor may use: a home folder can be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        flags = ""
    return f"{platform.system()} {platform.machine()} {platform.processor()} {flags}"
