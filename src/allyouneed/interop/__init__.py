"""Import and export of models: explicit maps of names and settings. Anything that is not understood is refused.

`EXPORTS` lists the targets of `allyouneed export --to`. Each writes a folder, reports its progress, and returns notes
for the user.
"""

from collections.abc import Callable
from pathlib import Path

from allyouneed.errors import ConfigError
from allyouneed.folder import Bundle
from allyouneed.interop.progress import ReportProgress


def _hugging_face(bundle: Bundle, out: Path, quantization: str | None, report: ReportProgress) -> list[str]:
    from allyouneed.interop.hf.export import export_folder

    return export_folder(bundle, out, quantization)


def _ctranslate2(bundle: Bundle, out: Path, quantization: str | None, report: ReportProgress) -> list[str]:
    from allyouneed.interop.ctranslate2.export import export_folder

    return export_folder(bundle, out, quantization, report)


def _onnx(bundle: Bundle, out: Path, quantization: str | None, report: ReportProgress) -> list[str]:
    from allyouneed.interop.onnx.export import export_folder

    _refuse(quantization, "onnx")
    return export_folder(bundle, out, report)


def _int8(bundle: Bundle, out: Path, quantization: str | None, report: ReportProgress) -> list[str]:
    from allyouneed.interop.int8 import export_folder

    _refuse(quantization, "int8")
    return export_folder(bundle, out)


def _refuse(quantization: str | None, to: str) -> None:
    if quantization is not None:
        raise ConfigError(f"--quantization {quantization}: --to {to} does not quantize; use --to ctranslate2")


Export = Callable[[Bundle, Path, str | None, ReportProgress], list[str]]
EXPORTS: dict[str, Export] = {
    "hf": _hugging_face,
    "ctranslate2": _ctranslate2,
    "onnx": _onnx,
    "int8": _int8,
}
