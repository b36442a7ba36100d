"""Bodies of almost 1 MiB that are expensive to parse, to validate or to complain about, for every POST endpoint."""

from collections.abc import Iterator

SIZE = (1 << 20) - 200  # bytes; just within `max_body`
ALLOWED = 32_700  # values of a body that is parsed
JSON, FORM = "application/json", "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data; boundary=x"
PART = b'--x\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'


def _filled(start: bytes, piece: bytes, end: bytes) -> bytes:
    return start + piece * ((SIZE - len(start) - len(end)) // len(piece)) + end


def _numbered(start: bytes, piece: bytes, end: bytes, most: int = SIZE) -> bytes:
    """Return a body whose pieces all differ."""
    count = min(most, (SIZE - len(start) - len(end)) // (len(piece) + 4))
    return start + b"".join(piece % (b"%06d" % number) for number in range(count)) + end


# The fields that a body may have, and one that accepts a text or a list of texts.
FIELDS = {
    "/translate": (b'"source":"en","target":"de"', b"q"),
    "/detect": (b'"api_key":null', b"q"),
    "/v1/completions": (b'"model":"language"', b"prompt"),
    "/v1/chat/completions": (b'"model":"language"', b"messages"),
    "/score": (b'"model":"language"', b"text"),
    "/attention": (b'"model":"language"', b"text"),
    "/rasp": (b'"input":"abc"', b"program"),
    "/v1/embeddings": (b'"model":"language"', b"input"),
    "/tokenize": (b'"model":"language"', b"text"),
    "/detokenize": (b'"model":"language"', b"ids"),
}


def json_bodies(path: str) -> dict[str, bytes]:
    """Return hostile bodies by name."""
    fields, text = FIELDS[path]
    start = b'{%b,"%b":' % (fields, text)
    bodies = {
        "unknown fields": _numbered(b"{" + fields, b',"%b":1', b"}"),
        "unknown fields in a list": _numbered(start + b"[{" + fields, b',"%b":1', b"}]}"),
        "unknown fields beside": _numbered(b'{%b,"%b":"a"' % (fields, text), b',"%b":1', b"}"),
        "a long field": _filled(b'{%b,"%b":"a","' % (fields, text), b"a", b'":1}'),
        "a long escaped field": _filled(b'{%b,"%b":"a","' % (fields, text), b"\\u0000", b'":1}'),
        "numbers": _filled(start + b"[", b"1,", b"1]}"),
        "empty texts": _filled(start + b"[", b'"",', b'""]}'),
        "empty lists": _filled(start + b"[", b"[],", b"[]]}"),
        "empty objects": _filled(start + b"[", b"{},", b"{}]}"),
        "as many numbers as allowed": start + b"[" + b"1," * ALLOWED + b"1]}",
        "as many texts as allowed": start + b"[" + b'"a",' * ALLOWED + b"1]}",
        "as many objects as allowed": start + b"[" + b"{}," * (ALLOWED // 2) + b"1]}",
        "as many fields as allowed": _numbered(b"{" + fields, b',"%b":1', b"}", ALLOWED),
        "nested lists": start + b"[" * (SIZE // 2) + b"]" * (SIZE // 2 - 100) + b"}",
        "nested objects": _filled(start, b'{"a":', b"1}"),
        "a nested model": _filled(b'{"model":', b'{"a":', b"1}"),
        "a long text": _filled(start + b'"', b"a", b'"}'),
        "commas": _filled(start + b'"', b",[{", b'"}'),
        "escapes": _filled(start + b'"', b"\\n", b'"}'),
        "emoji": _filled(start + b'"', b"\\ud83d\\ude42", b'"}'),
        "surrogates": _filled(start + b'"', b"\\ud800", b'"}'),
        "a long model": _filled(b'{"%b":"a","model":"' % text, b"a", b'"}'),
        "quotes": _filled(b"", b'"', b""),
        "escaped quotes": _filled(b'"', b'\\"', b""),
        "spaces": _filled(b"", b" ", b""),
        "a long number": _filled(start, b"1", b"}"),
        "a long fraction": _filled(start + b"0.", b"1", b"}"),
        "a long exponent": _filled(start + b"1e", b"1", b"}"),
        "not UTF-8": _filled(start + b'"', b"\xff", b'"}'),
        "UTF-16": _filled(b'{"a":[', b"1,", b"1]}")[: SIZE // 2].decode().encode("utf-16"),
    }
    if path == "/v1/chat/completions":
        turn = b'{"role":"user","content":"a"},'
        bodies["wrong turns"] = start + b"[" + turn * 9_000 + b"{}]}"
        bodies["wrong turns at first"] = start + b"[" + b'{"role":1},' * 10_000 + b"{}]}"
        bodies["turns"] = start + b"[" + turn * 9_000 + turn[:-1] + b"]}"
        bodies["parts"] = _filled(start + b'[{"role":"user","content":[', b'{"type":"image"},', b"1]}]}")
        bodies["some parts"] = start + b'[{"role":"user","content":[' + b'{"type":"image"},' * 16_000 + b"1]}]}"
        bodies["tools"] = start + b'[{"role":"user","content":"a"}],"tools":[' + b"{}," * 16_000 + b"1]}"
        bodies["modalities"] = start + b'[{"role":"user","content":"a"}],"modalities":[' + b"1," * ALLOWED + b"1]}"
    if path == "/v1/completions":
        beside = start + b'"a",'
        bodies["stops"] = _filled(beside + b'"stop":[', b'"a",', b'"a"]}')
        bodies["a logit bias"] = _numbered(beside + b'"logit_bias":{"a":1', b',"%b":1', b"}}")
        bodies["stream options"] = _numbered(beside + b'"stream":true,"stream_options":{"a":1', b',"%b":1', b"}}")
    return bodies


def form_bodies() -> Iterator[tuple[str, str, bytes]]:
    """Yield the names, types and contents of hostile forms."""
    yield "fields", FORM, _filled(b"", b"a&", b"")
    yield "named fields", FORM, _numbered(b"q=a", b"&%b=1", b"")
    yield "repeated fields", FORM, _filled(b"", b"q=a&", b"")
    yield "escapes", FORM, _filled(b"source=en&target=de&q=", b"%41", b"")
    yield "an escaped field", FORM, _filled(b"source=en&target=de&q=a&", b"%41", b"=a")
    yield "spaces", FORM, _filled(b"source=en&target=de&q=", b"+", b"")
    yield "not UTF-8", FORM, _filled(b"source=en&target=de&q=", b"%FF", b"")
    yield "parts", MULTIPART, PART % (b"q", b"a") * (SIZE // 60) + b"--x--\r\n"
    yield "line breaks", MULTIPART, PART % (b"q", _filled(b"", b"\r\n", b"")[:-200]) + b"--x--\r\n"
    yield "boundaries", MULTIPART, PART % (b"q", _filled(b"", b"\r\n--", b"")[:-200]) + b"--x--\r\n"
    yield "headers", MULTIPART, b"--x\r\n" + _filled(b"", b"a:b\r\n", b"")[:-200]
    yield "a long name", MULTIPART, PART % (b"a" * (SIZE - 200), b"a") + b"--x--\r\n"
    yield "parameters", MULTIPART, b"--x\r\nContent-Disposition: form-data" + b"; a=b" * (SIZE // 6) + b"\r\n\r\n"
    yield "quotes", MULTIPART, b'--x\r\nContent-Disposition: form-data; name="' + b'\\"' * (SIZE // 3) + b"\r\n\r\n"


def all_bodies() -> Iterator[tuple[str, str, str, bytes]]:
    """Yield the path, the name, the type and the content of every hostile body."""
    for path in FIELDS:
        for name, content in json_bodies(path).items():
            yield path, name, JSON, content
    for path in ("/translate", "/detect"):
        for name, kind, content in form_bodies():
            yield path, name, kind, content
