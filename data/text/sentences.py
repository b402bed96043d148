"""English text → sentences, at stops that end no abbreviation; CJK text at its own stops."""

import re

# A sentence ends at these, with what closes quotes and brackets after them; CJK stops need no space to follow.
_CLOSING = "\"'”’»)\\]}›"
# A run of stops is tried once, from its first (the lookbehind), and without backtracking (++, *+): if it ends no
# sentence as a whole, no part of it does. So the time is linear in the length of the line.
_STOPS, _CJK_STOPS = ".!?…؟।۔", "。！？"
_END = re.compile(
    rf"(?<![{_STOPS}])[{_STOPS}]++[{_CLOSING}]*+(?P<gap>\s++)(?=(?P<next>\S))"
    rf"|(?<![{_CJK_STOPS}])[{_CJK_STOPS}]++[”’」』）》〉】\"')]*+(?P<cjk>\s*+)(?=\S)"
)
_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof st sr jr rev hon gen col capt lt sgt maj cmdr adm gov sen rep pres messrs mme mlle mt ft "
    "vs etc al cf ca approx fig figs eq eqs sec ch chap vol vols pp ed eds est dept univ inc ltd co corp bros "
    "jan feb mar apr jun jul aug sep sept oct nov dec op viz".split()
)
_BEFORE_A_NUMBER = frozenset("no nos nr p art".split())
_LAST_WORD = re.compile(r"[^\s(\[{\"'“‘«—–-]*\Z")


def sentences(line: str) -> list[str]:
    """Splits a paragraph: `"Dr. Who left. He ran!" → ["Dr. Who left.", "He ran!"]`.

    A stop ends a sentence when a space follows and then something that may begin one (no lower-case letter, no closing
    mark); abbreviations, initials, `e.g.` and the like end none. 。！？ end one without a space. Text without such
    marks stays whole.
    """
    pieces: list[str] = []
    start = 0
    for match in _END.finditer(line):
        follows = match["next"]
        if follows is not None:
            if follows.islower() or follows in ",;:)]}%&":
                continue
            before = line[max(start, match.start() - 24) : match.start()]
            if line[match.start()] == "." and _abbreviated(before, follows):
                continue
        end = match.start("gap" if follows is not None else "cjk")
        pieces.append(line[start:end])
        start = match.end()
    if start < len(line):
        pieces.append(line[start:])
    return pieces


def _abbreviated(before: str, follows: str) -> bool:
    """Returns whether the stop between these texts belongs to an abbreviation."""
    match = _LAST_WORD.search(before)
    word = match[0] if match else ""
    # An initial (J.), or letters with stops between them (e.g., U.S.).
    if len(word) == 1 or (len(word) > 2 and word[-2] == "."):
        return word[-1].isalpha()
    word = word.lower()
    return word in _ABBREVIATIONS or (word in _BEFORE_A_NUMBER and follows.isdigit())
