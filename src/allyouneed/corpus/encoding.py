"""Traces of a wrong encoding in a text."""

import re
import unicodedata

# What a byte of 0x80 to 0xBF is when UTF-8 is read as Windows-1252 or Latin-1.
_RUNNING = {bytes([byte]).decode("cp1252", "ignore") or chr(byte): byte for byte in range(0x80, 0xC0)}
_RUNNING |= {chr(byte): byte for byte in range(0x80, 0xC0)}
_TAIL = "[" + re.escape("".join(_RUNNING)) + "]"
_MOJIBAKE = re.compile(f"[\u00c2-\u00df]{_TAIL}|[\u00e0-\u00ef]{_TAIL}{{2}}|[\u00f0-\u00f4]{_TAIL}{{3}}")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff\ue000-\uf8ff]")
# Capitals before closing quotes look like UTF-8: MENÜ» of rare letters, which do not count; IRMÃ” of common ones.
_CLOSING = frozenset("“”‘’„‚…‹›«»–—")
_COMMON = re.compile(
    "[\u0080-\u017f\u0370-\u052f\u05d0-\u06ff\u0900-\u097f\u0e00-\u0e7f\u1e00-\u1eff\u2000-\u27bf"
    "\u3000-\u30ff\u4e00-\u9fff\uac00-\ud7af\U0001f300-\U0001faff]"
)


def encoding_defects(text: str) -> list[str]:
    """Return the kinds of defects in the encoding of a text."""
    if text.isascii() and text.isprintable():
        return []
    found = []
    if is_mojibake(text):
        found.append("mojibake")
    if "\ufffd" in text:
        found.append("replacement")
    if _CONTROL.search(text):
        found.append("control")
    if not unicodedata.is_normalized("NFC", text):
        found.append("unnormalised")
    return found


def is_mojibake(text: str) -> bool:
    """Return whether a text has UTF-8 that was read as Windows-1252 or Latin-1."""
    return any(
        _is_common(match[0])
        and not (match[0][1:] in _CLOSING and not text[max(0, match.start() - 1) : match.start()].islower())
        for match in _MOJIBAKE.finditer(text)
    )


def _is_common(run: str) -> bool:
    raw = bytes([ord(run[0]), *(_RUNNING[char] for char in run[1:])])
    try:
        return _COMMON.fullmatch(raw.decode("utf-8")) is not None
    except UnicodeDecodeError:
        return False
