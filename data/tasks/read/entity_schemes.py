"""Tags that mark how entities begin and go on, in the forms in which files have them → those that seqeval reads.

| form | tags of one entity of three words |
|---|---|
| B-PER, the usual one; with E and S (IOBES), L and U (BILOU), or M, E and S (BMES) | `B-PER I-PER E-PER` |
| B_PER | `B_PER I_PER I_PER` |
| PER-B, PER_B | `PER-B PER-I PER-I` |
| B, of entities without types, or of the words in a line of characters | `B I I`, `B M E` |
"""

import re
from collections.abc import Mapping, Sequence

OUTSIDE = "O"
UNTYPED = "entity"
"""The type of entities whose tags have none."""
_MARK = "(?P<mark>[BIESLUM])"
# Tried in this order: B-E fits the first form and the third one, and is read by the first, the usual one.
_FORMS = tuple(
    map(
        re.compile, (f"{_MARK}-(?P<type>.+)", f"{_MARK}_(?P<type>.+)", f"(?P<type>.+)[-_]{_MARK}", f"{_MARK}(?P<type>)")
    )
)
# seqeval, by default, knows B, I, E and S, and neither L, U nor M.
_SEQEVAL = {"L": "E", "U": "S", "M": "I"}
"""Marks as seqeval spells them: the last word of an entity, a single one, one in the middle."""


def entity_tags(labels: Sequence[str]) -> Mapping[str, str] | None:
    """Returns seqeval's tag for each label: {"B_PER": "B-PER", …}. None unless all but O are of one form, and one of
    them at least begins an entity (B) or goes on with it (I)."""
    marked = [label for label in labels if label != OUTSIDE]
    for form in _FORMS:
        matches = [match for label in marked if (match := form.fullmatch(label))]
        # B or I must occur: the other letters alone may begin tags of another kind.
        if len(matches) == len(marked) and any(match["mark"] in "BI" for match in matches):
            tags = {m[0]: f"{_SEQEVAL.get(m['mark'], m['mark'])}-{m['type'] or UNTYPED}" for m in matches}
            return {OUTSIDE: OUTSIDE, **tags}
    return None


def why_no_entities(labels: Sequence[str]) -> str:
    """Returns a line that says which tag keeps entities from being scored, where half of the tags mark them; "" where
    they are scored, or are not meant to be."""
    marked = [label for label in labels if label != OUTSIDE]
    # No tag but O: there is nothing to score, and no form to be wrong.
    if entity_tags(labels) is not None or not marked:
        return ""
    # The form that most tags have.
    form = max(_FORMS, key=lambda form: sum(form.fullmatch(label) is not None for label in marked))
    fitting = [label for label in marked if form.fullmatch(label)]
    # Fewer than half: these tags do not mark entities at all, as parts of speech do not.
    if 2 * len(fitting) < len(marked) or entity_tags(fitting) is None:
        return ""
    odd = next(label for label in marked if not form.fullmatch(label))
    return (
        f"entities are not scored (entity_f1): the tag {odd!r} is neither O nor of the form of {fitting[0]!r}; give "
        "all tags one form, as B-TYPE and I-TYPE"
    )
