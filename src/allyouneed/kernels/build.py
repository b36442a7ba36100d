"""Compile the C files for this machine and load them; without a compiler, torch does the work.

The library is compiled once (a few seconds) into the user's cache folder and loaded with ctypes, whose calls release
the interpreter's lock.

    ALLYOUNEED_KERNELS=off               do not use kernels
    ALLYOUNEED_SANITIZE=address|thread   build with AddressSanitizer and UBSan, or ThreadSanitizer (docs/sanitizers.md)
"""

import ctypes
import hashlib
import logging
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

from allyouneed.kernels.header import HEADER

HERE = Path(__file__).parent
COMPILERS = ("cc", "gcc", "clang")
COMPILE_SECONDS = 120
_SHARED = ("-march=native", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros")
_WIDE = ("-mprefer-vector-width=512",) if platform.machine() in ("x86_64", "AMD64") else ()
# Sums in steps.c may be reordered, which vectorises them; infinities and NaN keep their meaning. The tiles of the
# products use explicit vectors: -O3 makes them no faster and takes three times as long to compile.
_FILES = {
    "steps.c": ("-O3", "-fassociative-math", "-freciprocal-math"),
    "products.c": ("-O2", "-ftree-vectorize"),
    "coded.c": ("-O2", "-ftree-vectorize"),
    "int8.c": ("-O2", "-ftree-vectorize"),
    "stack.c": ("-O2", "-ftree-vectorize"),
    "threads.c": ("-O2",),
}
# Instrumented code contracts a * b + c in some places only; without contraction all places round alike.
_DEBUG = ("-O1", "-g", "-fno-omit-frame-pointer", "-ffp-contract=off")
_SANITIZERS = {
    "": (),
    "address": (*_DEBUG, "-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"),
    "thread": (*_DEBUG, "-fsanitize=thread"),
}
_BUILDING = threading.Lock()
log = logging.getLogger(__name__)


class BuildError(Exception):
    """The kernels could not be built. The message gives the cause and a remedy."""


def usable(x: Tensor) -> bool:
    """Return True if kernels can take a tensor: float32 on a CPU, without gradients, and the library is loaded."""
    return x.dtype is torch.float32 and x.is_cpu and not torch.is_grad_enabled() and library() is not None


@cache
def functions() -> SimpleNamespace:
    """Return the compiled functions; call `usable` first."""
    loaded = library()
    assert loaded is not None, "call `usable` first"
    return loaded


@cache
def library() -> SimpleNamespace | None:
    """Return the compiled functions, or None if they are turned off or cannot be built (logged as one line)."""
    if os.environ.get("ALLYOUNEED_KERNELS", "").lower() in ("off", "0", "no", "false"):
        return None
    sanitizer = os.environ.get("ALLYOUNEED_SANITIZE", "")
    try:
        with _BUILDING:
            loaded = ctypes.CDLL(str(_compiled(_compiler(), sanitizer)))
    except (BuildError, OSError) as error:
        if sanitizer:
            raise
        log.warning("C kernels are not used, decoding takes torch's slower path: %s", error)
        return None
    bound = {name: function.bind(loaded, name) for name, function in HEADER.functions.items()}
    return SimpleNamespace(**bound, sanitizer=sanitizer)


def _compiler() -> str:
    if os.name != "posix":
        raise BuildError(f"they need a POSIX system, this is {platform.system()}")
    for name in COMPILERS:
        if path := shutil.which(name):
            return path
    raise BuildError(f"no C compiler on PATH (tried {', '.join(COMPILERS)}); install gcc or clang")


def _compiled(compiler: str, sanitizer: str) -> Path:
    """Return the path of the library. Compile it first if it does not exist.

    Its name is a hash of everything it depends on, so that a home folder may be shared by different machines.
    """
    if sanitizer not in _SANITIZERS:
        raise BuildError(f"ALLYOUNEED_SANITIZE={sanitizer}: unknown; use address or thread")
    sanitize = _SANITIZERS[sanitizer]
    sources = [(HERE / file).read_bytes() for file in ("kernels.h", "lanes.h", "team.h", "tiles.h", *_FILES)]
    facts = repr((compiler, _FILES, _SHARED, _WIDE, sanitize, _processor())).encode()
    folder = _cache_folder()
    path = folder / f"kernels-{hashlib.sha256(b'|'.join([*sources, facts])).hexdigest()[:16]}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as work:  # several processes may compile at the same time
            built, objects = Path(work) / path.name, [str(Path(work) / f"{file}.o") for file in _FILES]
            for (file, flags), compiled in zip(_FILES.items(), objects, strict=True):
                _run(compiler, *flags, *_SHARED, *_WIDE, *sanitize, "-c", str(HERE / file), "-o", compiled)
            _run(compiler, "-shared", *sanitize, *objects, "-o", str(built), "-lm", "-lpthread")
            built.rename(path)
    return path


def _run(*command: str) -> None:
    # A sanitizer's runtime that is preloaded into Python would slow down the compiler.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_SECONDS, env=environment)
    except subprocess.TimeoutExpired:
        raise BuildError(f"{command[0]} took more than {COMPILE_SECONDS} seconds; try again or use gcc") from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.splitlines()
        errors = [line.strip() for line in lines if "error" in line] or lines
        reason = errors[0] if errors else f"exit code {error.returncode}"
        raise BuildError(f"{command[0]} failed ({reason}); install a recent gcc or clang") from None


def _cache_folder() -> Path:
    """Return a folder that only this user can write to, since code in it is executed."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(home):
        raise BuildError(f"{home}: not an absolute folder; set HOME or XDG_CACHE_HOME")
    folder = Path(home) / "allyouneed"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = folder.stat()
    if facts.st_uid != os.getuid() or facts.st_mode & 0o022:
        raise BuildError(f"{folder}: others can write to it, and code in it is executed; run chmod 700 {folder}")
    return folder


def _processor() -> str:
    """Return a string that identifies the instruction set of this processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        flags = ""
    return f"{platform.system()} {platform.machine()} {platform.processor()} {flags}"
