"""Changes to valid inputs that keep most of their structure: bytes, lines, JSON, protobuf messages, command lines.

Every change is drawn from a `random.Random`, so that a case is known by its target, seed and number.
"""

import json
import random
from collections.abc import Callable
from typing import Any

LARGEST = 1 << 20
"""Bytes of a case: a parser that is slow on more is not looked for here."""
NUMBERS: list[Any] = [0, -1, 1, 2, 7, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, -(2**63), 2**64,
                      10**20, 10**400, float("nan"), float("inf"), -float("inf"), 1e308, 1e-320, 0.5, -0.0]  # fmt: skip
STRINGS = ["", " ", "\0", "\x1b[31m", "é", "e\u0301", "\u202e", "𝔘", "\ud800", "a" * 5000, "nan", "-1", "1e999", "../x",
           "..", ".", "[MASK]", "\u2028", "\ufeff", "\r", "\x85", "\t", "\n", '"', "'", "{}", "%s", "--help", "x,y",
           "0", "01", "１", "true", "null", "日本", "\U0010ffff", "##", "</w>", "Ġ", "🤦🏽", "1_000", "\xa0", "\x1c",
           "tfds:x", "gs://b/x", "O", "B-", "I-X", "a\\", "[UNK]", "<S>"]  # fmt: skip
Rng = random.Random
Mutation = Callable[[bytes, Rng], bytes]


def odd_json(rng: Rng) -> Any:
    kind = rng.randrange(8)
    if kind < 3:
        return rng.choice(NUMBERS)
    if kind < 5:
        return rng.choice(STRINGS)
    if kind == 5:
        return rng.choice([None, True, False, [], {}, [[]], [None], {"": None}])
    if kind == 6:
        deep: Any = 0
        for _ in range(rng.choice([2, 90])):
            deep = [deep] if rng.random() < 0.5 else {"a": deep}
        return deep
    return [rng.choice(STRINGS + NUMBERS) for _ in range(rng.randrange(4))]


def of_bytes(raw: bytes, rng: Rng) -> bytes:
    """Bytes flipped, put in, taken out, repeated; mostly near the beginning, where headers are."""
    for _ in range(rng.choice([1, 1, 2, 4])):
        size = len(raw)
        at = int(size * rng.random() ** rng.choice([1, 4]))
        end = min(size, at + rng.choice([1, 1, 2, 4, 8, 64, 1000]))
        match rng.randrange(8):
            case 0:
                raw = raw[:at] + bytes(b ^ (1 << rng.randrange(8)) for b in raw[at : at + 1]) + raw[at + 1 :]
            case 1:
                raw = raw[:at] + bytes([rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])]) + raw[at + 1 :]
            case 2:
                raw = raw[:at] + rng.randbytes(rng.choice([1, 2, 9])) + raw[at:]
            case 3:
                raw = raw[:at] + raw[end:]
            case 4:
                raw = raw[:end] + raw[at:end] * rng.choice([1, 2, 100]) + raw[end:]
            case 5:
                raw = raw[:at]
            case 6:
                width = rng.choice([2, 4, 8])
                number = rng.choice([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, size, size * 2]) % (1 << 8 * width)
                raw = raw[:at] + number.to_bytes(width, "little" if rng.random() < 0.5 else "big") + raw[at + width :]
            case _:
                other = int(size * rng.random())
                raw = raw[:at] + raw[other : other + end - at] + raw[end:]
    return raw[:LARGEST]


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def of_lines(raw: bytes, rng: Rng) -> bytes:
    """Lines lost, doubled, moved, joined; a field or a character of one made odd."""
    if rng.random() < 0.15:
        return of_bytes(raw, rng)
    for _ in range(rng.choice([1, 1, 2, 3])):
        lines = raw.split(b"\n")
        at = rng.randrange(len(lines))
        line, odd = lines[at], encoded(rng.choice(STRINGS))
        match rng.randrange(11):
            case 0:
                del lines[at]
            case 1:
                lines[at:at] = [line] * rng.choice([1, 1, 300])
            case 2:
                other = rng.randrange(len(lines))
                lines[at], lines[other] = lines[other], line
            case 3:
                lines[at:at] = [odd]
            case 4:
                lines[at] = odd
            case 5 | 6:
                place = rng.randrange(len(line) + 1)
                lines[at] = line[:place] + odd + line[place:]
            case 7:
                lines = [rng.choice([b"\r\n", b"\r"]).join(lines)]
            case 8 | 9:
                mark = rng.choice([b"\t", b",", b" ", b":"])
                fields = line.split(mark)
                place = rng.randrange(len(fields))
                if rng.random() < 0.3:
                    fields.pop(place)
                else:
                    fields[place] = odd
                lines[at] = mark.join(fields)
            case _:
                lines[at : at + 2] = [b"".join(lines[at : at + 2])]
        raw = b"\n".join(lines)
    return raw[:LARGEST]


def changed_tree(tree: Any, rng: Rng) -> Any:
    """JSON with one place made odd, lost, doubled, renamed or wrapped."""
    if not isinstance(tree, dict | list) or not tree or rng.random() < 0.02:
        return odd_json(rng)
    place: Any = tree
    while True:
        key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
        if not isinstance(place[key], dict | list) or not place[key] or rng.random() < 0.25:
            break
        place = place[key]
    match rng.randrange(8):
        case 0:
            del place[key]
        case 1 if isinstance(place, dict):
            place[rng.choice([*STRINGS, f"{key}_", f"{key}"[:-1]])] = place.pop(key)
        case 2 if isinstance(place, dict):
            place[rng.choice(list(place))] = place[key]
        case 3 if isinstance(place, list):
            place[key:key] = [place[key]] * rng.choice([1, 2, 500])
        case 4:
            place[key] = rng.choice([[place[key]], {"a": place[key]}, str(place[key])])
        case 5 if isinstance(place[key], str):
            text, at = place[key], rng.randrange(len(place[key]) + 1)
            place[key] = text[:at] + rng.choice(STRINGS) + text[at + rng.randrange(2) :]
        case 6 if isinstance(place[key], int | float) and abs(place[key]) < 1e300:
            place[key] = rng.choice([-place[key], place[key] + 1, place[key] - 1, place[key] * 1000, place[key] / 3])
        case _:
            place[key] = odd_json(rng)
    return tree


def of_json(raw: bytes, rng: Rng) -> bytes:
    if rng.random() < 0.12:
        return of_lines(raw, rng)
    if rng.random() < 0.02:
        return rng.choice([b"[" * 100_000, b"", b"\xef\xbb\xbf" + raw, b'{"a":' * 50_000, b"1" * 5000, raw * 2])
    tree = json.loads(raw)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        tree = changed_tree(tree, rng)
    return json.dumps(tree, ensure_ascii=rng.random() < 0.9).encode("utf-8", "surrogatepass")[:LARGEST]


def of_json_lines(raw: bytes, rng: Rng) -> bytes:
    if rng.random() < 0.3:
        return of_lines(raw, rng)
    lines = raw.splitlines()
    at = rng.randrange(len(lines))
    lines[at] = of_json(lines[at], rng)
    return b"\n".join(lines) + b"\n"


def after_length(raw: bytes, rng: Rng) -> bytes:
    """Safetensors: the u64 length of a JSON header, the header, and the arrays."""
    size = int.from_bytes(raw[:8], "little")
    if rng.random() < 0.25:
        return of_bytes(raw, rng)
    header = of_json(raw[8 : 8 + size], rng)
    length = len(header) if rng.random() < 0.9 else rng.choice([0, 1, len(header) - 1, 2**40, 2**63, 2**64 - 1])
    return length.to_bytes(8, "little") + header + raw[8 + size :]


def _varint(number: int) -> bytes:
    out = bytearray()
    number &= (1 << 64) - 1
    while True:
        out.append(number & 0x7F | (0x80 if number > 0x7F else 0))
        number >>= 7
        if not number:
            return bytes(out)


def _fields(message: bytes) -> list[tuple[int, int, Any]]:
    """(field, form, value) of a protobuf message; ValueError or IndexError where it is none."""
    at, fields = 0, []

    def varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte = message[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while at < len(message):
        key = varint()
        field, form = key >> 3, key & 7
        if form == 0:
            fields.append((field, form, varint()))
            continue
        size = varint() if form == 2 else {1: 8, 5: 4}.get(form, -1)
        if size < 0 or at + size > len(message) or not field:
            raise ValueError
        fields.append((field, form, message[at : at + size]))
        at += size
    return fields


def _message(fields: list[tuple[int, int, Any]]) -> bytes:
    out = []
    for field, form, value in fields:
        body = _varint(value) if form == 0 else (_varint(len(value)) if form == 2 else b"") + value
        out.append(_varint(field << 3 | form) + body)
    return b"".join(out)


def of_protobuf(raw: bytes, rng: Rng, depth: int = 0) -> bytes:
    """A field of a message, or of one inside it, made odd, lost or doubled; lengths stay right."""
    if not depth and rng.random() < 0.2:
        return of_bytes(raw, rng)
    try:
        fields = _fields(raw)
    except (ValueError, IndexError):
        fields = []
    if not fields:
        return of_bytes(raw, rng) if rng.random() < 0.4 else encoded(rng.choice(STRINGS))
    at = rng.randrange(len(fields))
    field, form, value = fields[at]
    match rng.randrange(6):
        case 0:
            del fields[at]
        case 1:
            fields[at:at] = [fields[at]] * rng.choice([1, 200])
        case 2:
            fields[at] = rng.choice([0, 1, 2, 3, 15, 2**20, 2**28]), form, value
        case _ if form == 2:
            fields[at] = field, form, of_protobuf(value, rng, depth + 1)
        case _ if form == 0:
            fields[at] = field, form, rng.choice([0, 1, 2, 6, 7, 127, 2**31, 2**32, 2**63, 2**64 - 1])
        case _:
            fields[at] = field, form, rng.randbytes(len(value))
    return _message(fields)[:LARGEST]


def words_of(options: list[str], paths: list[str]) -> Mutation:
    """Command lines, JSON lists of words: options added, lost, doubled, with values that make no sense or little."""

    def value(rng: Rng) -> str:
        kind = rng.randrange(4)
        if kind == 0:
            number = rng.choice(NUMBERS)
            return str(number) if not isinstance(number, int) or number < 10**30 else "1" + "0" * 400
        return rng.choice(
            STRINGS if kind == 1 else paths if kind == 2 else ["3", "0", "-3", "1.5", "yes", "auto", "2,1"]
        )

    def mutate(raw: bytes, rng: Rng) -> bytes:
        words: list[str] = json.loads(raw)
        for _ in range(rng.choice([1, 1, 2, 3, 5])):
            at = rng.randrange(1, len(words)) if len(words) > 1 else 1
            match rng.randrange(9):
                case 0:
                    del words[at : at + 1]
                case 1:
                    words[at:at] = [value(rng)]
                case 2 | 3:
                    words[at : at + 1] = [value(rng)]
                case 4:
                    words += words[at : at + 2]
                case 5:
                    name = rng.choice(options)
                    words += [
                        rng.choice([name.replace("-", "_"), name.replace("--", "--no-"), name[:-1], name.upper()])
                    ]
                case _:
                    words += [rng.choice(options), *(value(rng) for _ in range(rng.choice([1, 1, 1, 0, 2])))]
        # A word of a process ends at a NUL, and is decoded with surrogateescape.
        kept = [word.replace("\0", "").encode("utf-8", "replace").decode() for word in words]
        return json.dumps(kept).encode()

    return mutate
