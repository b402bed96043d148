"""The tokenizer of a folder of transformers: `tokenizer.json`, or BERT's `vocab.txt`, or a pair `vocab.json` and
`merges.txt`; with them `tokenizer_config.json` and, in older folders, `special_tokens_map.json`."""

from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict, cast

from contexture.data.errors import DataError
from contexture.data.tokenizers import tokenizer_files, wordpiece
from contexture.data.tokenizers.base import Tokenizer, with_added_tokens
from contexture.data.tokenizers.byte_pair import END, ByteBPE, Gpt1BPE, checked_pair, is_added, ordered, read_pair
from contexture.data.tokenizers.huggingface.known_options import (
    LONGEST_WORD,
    MORE,
    NAMES,
    PAIR,
    SETTINGS,
    WHOLE,
    JsonObject,
    Special,
    check_settings,
    check_whole,
    content_of,
)
from contexture.data.tokenizers.registry import load_tokenizer
from contexture.data.tokenizers.wordpiece import WordPiece

# Two pieces of Google's Chinese vocabulary are this character, alone and behind ##.
_LINE_END = "\u2028"


class AddedToken(TypedDict):
    """A token that was added to a vocabulary, as tokenizer.json lists it."""

    content: str
    id: int
    special: NotRequired[bool]
    """False: text may spell it. In transformers it is then cut out of text before anything else."""


@dataclass(frozen=True)
class _Folder:
    """What a folder says of its tokenizer."""

    path: Path
    kind: str
    settings: JsonObject
    """tokenizer_config.json, and what special_tokens_map.json adds to it."""
    whole: JsonObject | None
    """tokenizer.json."""
    added: list[AddedToken]
    plain: bool
    """Whether tokenizer.json alone says how text is split: no option in `settings` has an effect."""


def open_published(
    folder: Path, kind: str, vocabulary: str, lowercase: bool | None, notes: list[str]
) -> tuple[Tokenizer, Special]:
    """Opens the tokenizer of a folder of transformers → (tokenizer, the names of its special tokens). It splits text as
    the folder's fast tokenizer does.

    Differs: a special or added token that text spells out is text.

    Args:
        folder: the folder.
        kind: wordpiece, byte-bpe or gpt1-bpe.
        vocabulary: another such folder to take instead, or a vocabulary's own file.
        lowercase: for WordPiece; None: as the folder says, else whether the vocabulary has no capitals.
        notes: receives what the user should know.

    Raises:
        DataError: for files that are missing, damaged, or split text in another way.
    """
    source = Path(vocabulary or folder)
    its = (WHOLE, PAIR[0]) if vocabulary else (WHOLE, PAIR[0], wordpiece.VOCABULARY)
    # A vocabulary's own file, as its makers published it: there are no options of transformers.
    if vocabulary and not any((source / name).is_file() for name in its):
        return _as_transformers(of_kind(open_vocabulary(source, lowercase, notes), kind, source)), {}
    files = (NAMES, SETTINGS, "config.json")  # what the second says comes before the first
    names, settings, config = (_object(source / name) if (source / name).is_file() else {} for name in files)
    settings = {**names, **settings}
    whole = _object(source / WHOLE) if (source / WHOLE).is_file() else None
    # Without tokenizer.json there is nothing that could say it alone.
    plain = check_settings(source, settings, config, kind) and whole is not None
    added = _added(source, whole)
    if spelled := [token["content"] for token in added if not token.get("special", True)]:
        notes.append(
            f"{len(spelled)} added tokens that text may spell ({spelled[0]!r}) are cut as text: they keep their ids "
            "alone"
        )
    opened = _Folder(source, kind, settings, whole, added, plain)
    tokenizer = _wordpiece(opened, lowercase, notes) if kind == WordPiece.kind else _byte_pairs(opened)
    # Names such as cls_token, which an export writes again.
    special = {
        name: token
        for name, value in settings.items()
        if name.endswith("_token") and isinstance(token := content_of(value), str)
    }
    # Tokens that every such vocabulary has are no additional ones.
    usual = {*special.values(), *wordpiece.SPECIAL, END, "<unk>"}
    more = [token["content"] for token in added if token.get("special", True) and token["content"] not in usual]
    return tokenizer, {**special, **({MORE: more} if more else {})}


def _as_transformers(tokenizer: Tokenizer) -> Tokenizer:
    """Returns the same vocabulary, splitting text as transformers does."""
    # A word has 100 characters at most in transformers, and 200 in the original.
    if isinstance(tokenizer, WordPiece):
        return WordPiece(tokenizer.vocabulary, tokenizer.lowercase, longest_word=LONGEST_WORD)
    if isinstance(tokenizer, Gpt1BPE):
        return Gpt1BPE(tokenizer.vocabulary, tokenizer.merges, cleaned="transformers")
    return tokenizer


def _byte_pairs(opened: _Folder) -> Tokenizer:
    folder, kind, whole, added = opened.path, opened.kind, opened.whole, opened.added
    file = folder / (PAIR[0] if whole is None else WHOLE)
    if whole is None:
        if not file.is_file():
            raise _no_vocabulary(folder, PAIR[0])
        vocabulary, merges = read_pair(folder, *PAIR)
        # In the form of tokenizer.json, so that both are checked by the same rules.
        entries = [(token, number) for number, token in enumerate(vocabulary)]
        lines = [(str(folder / PAIR[1]), " ".join(merge)) for merge in merges]
    else:
        entries = _entries(file, whole, "BPE")
        check_whole(file, whole, kind, opened.plain)
        given = whole["model"].get("merges")
        # A merge is written "a b", or in newer files ["a", "b"].
        if not isinstance(given, list) or not all(isinstance(m, str | list) for m in given):
            raise DataError(f"{file}: model.merges is no list of merges; give the file as it was saved")
        lines = [
            (f"{file}: merge {n}", m if isinstance(m, str) else " ".join(map(str, m))) for n, m in enumerate(given)
        ]
    # Added tokens that look like special ones of the vocabulary (<|endoftext|>) belong to it. The others come after it,
    # from the first token on that does not look so.
    known = dict(entries)
    more = [(token["content"], token["id"]) for token in added if token["content"] not in known]
    own = next((n for n, (token, _) in enumerate(more) if not is_added(token)), len(more))
    entries, more = [*entries, *more[:own]], more[own:]
    # A folder of transformers is read as transformers reads it, GPT-1's too, and not as the original.
    tokens = checked_pair(entries, file, lines, file)
    tokenizer = ByteBPE(*tokens, str(file)) if kind == ByteBPE.kind else Gpt1BPE(*tokens, str(file), "transformers")
    if not more:
        return tokenizer
    # Called for its check: the ids of all tokens together must have no hole.
    ordered([*entries, *more], file)
    return with_added_tokens(tokenizer, [token for token, _ in more])


def open_vocabulary(file: Path, lowercase: bool | None, notes: list[str]) -> Tokenizer:
    """Opens a vocabulary as its makers published it. For WordPiece, lowercase=None is guessed, with a note."""
    tokenizer = load_tokenizer(file, bool(lowercase))
    if isinstance(tokenizer, WordPiece) and lowercase is None:
        tokenizer = WordPiece(tokenizer.vocabulary, _guessed(tokenizer.vocabulary, notes), str(file))
    return tokenizer


def of_kind(tokenizer: Tokenizer, kind: str, where: Path) -> Tokenizer:
    """Returns the tokenizer itself. Raises: DataError where it is of another kind."""
    if tokenizer.kind != kind:
        raise DataError(f"{where}: a vocabulary of kind {tokenizer.kind}, and the model reads {kind}; give its own")
    return tokenizer


def _guessed(vocabulary: tuple[str, ...], notes: list[str]) -> bool:
    # Letters alone: [UNK] and its like have capitals in every vocabulary.
    capitals = any(piece != piece.lower() for piece in vocabulary if piece.isalpha())
    reason = "has capitals: text keeps its case" if capitals else "has no capitals: text is lower-cased"
    notes.append(f"the vocabulary {reason} (--lowercase yes or no says otherwise)")
    return not capitals


def _wordpiece(opened: _Folder, lowercase: bool | None, notes: list[str]) -> WordPiece:
    folder, whole, longest = opened.path, opened.whole, LONGEST_WORD
    if whole is not None:
        entries = _entries(file := folder / WHOLE, whole, "WordPiece")
        check_whole(file, whole, opened.kind, opened.plain)
        given = whole["model"].get("max_input_chars_per_word", longest)
        if type(given) is not int or not 1 <= given <= 1_000_000:
            raise DataError(f"{file}: model.max_input_chars_per_word is {str(given)[:40]}; give the file as saved")
        # Other classes have a limit of their own, whatever the file says.
        longest = given if opened.plain else longest
    elif (file := folder / wordpiece.VOCABULARY).is_file():
        entries = [(piece, number) for number, piece in enumerate(tokenizer_files.read_lines(file))]
    else:
        raise _no_vocabulary(folder, wordpiece.VOCABULARY)
    known = {piece for piece, _ in entries}
    more = [(token["content"], token["id"]) for token in opened.added if token["content"] not in known]
    # In vocab.txt a token's id is its line number, and added tokens follow; tokenizer.json gives every token its id.
    vocabulary = [piece for piece, _ in entries] if whole is None and not more else ordered([*entries, *more], file)
    if set(vocabulary) <= set(wordpiece.SPECIAL):
        raise DataError(
            f"{file}: holds special tokens alone, so that every text is {wordpiece.UNK}; give --vocabulary vocab.txt"
        )
    if whole is not None and "" in vocabulary:  # of the Chinese vocabulary's line ends transformers strips two pieces
        vocabulary = [piece + _LINE_END if piece in ("", "##") else piece for piece in vocabulary]
    lower, accents = _case(opened, lowercase, notes)
    if lower is None:
        lower = _guessed(tuple(vocabulary), notes)
    return WordPiece(vocabulary, lower, str(file), longest, accents)


def _case(opened: _Folder, lowercase: bool | None, notes: list[str]) -> tuple[bool | None, bool | None]:
    """Returns whether text is lower-cased (None: nobody says), and whether it loses its accents (None: with its case).

    Raises: DataError for values that are none, and where Chinese is not parted.
    """
    normal = (opened.whole or {}).get("normalizer") or {}
    # What tokenizer_config.json says, unless tokenizer.json alone counts.
    lower, accents, chinese = (
        opened.settings.get(name) for name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
    )
    # Nothing but tokenizer.json has an effect.
    if opened.plain:
        lower, accents, chinese = normal.get("lowercase", True), normal.get("strip_accents"), None
    elif lower is None and opened.whole is not None:
        # BertTokenizer's default, whatever tokenizer.json says.
        lower = True
        if lowercase is None and normal.get("lowercase") is False:
            notes.append("text is lower-cased: tokenizer_config.json has no do_lower_case (--lowercase no keeps case)")
    for name, value, known in (
        ("do_lower_case", lower, (True, False, None)),
        ("strip_accents", accents, (True, False, None)),
        ("tokenize_chinese_chars", chinese, (True, None)),
    ):
        if not any(value is one for one in known):
            raise DataError(f"{opened.path}: {name} is {str(value)[:40]!r}, not one of {known}; nothing else is known")
    return (lower if lowercase is None else lowercase), accents


def _no_vocabulary(folder: Path, other: str) -> DataError:
    return DataError(f"{folder}: no {WHOLE} and no {other}; put one of them beside the model, or give --vocabulary")


def _object(file: Path) -> JsonObject:
    content = tokenizer_files.read_json(file)
    if not isinstance(content, dict):
        raise DataError(f"{file}: not a JSON object; give the file as it was saved")
    return content


Entries = list[tuple[str, int]]


def _entries(file: Path, whole: JsonObject, kind: str) -> Entries:
    """Returns the model's tokens with their ids."""
    model = whole.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    # A file may leave the model's type out.
    if not isinstance(model, dict) or not isinstance(vocab, dict) or model.get("type", kind) != kind:
        got = model.get("type") if isinstance(model, dict) else None
        raise DataError(f"{file}: model is of type {got!r}, and a {kind} with its vocabulary is wanted; give its own")
    return list(vocab.items())


def _added(folder: Path, whole: JsonObject | None) -> list[AddedToken]:
    """Returns the tokens that were added to a vocabulary, in the order of their ids."""
    file = folder / (WHOLE if whole is not None else "added_tokens.json")
    if whole is not None:
        tokens = whole.get("added_tokens") or []
    else:
        tokens = [{"content": token, "id": n} for token, n in (_object(file) if file.is_file() else {}).items()]
    for token in tokens if isinstance(tokens, list) else [None]:
        if not isinstance(token, dict) or type(token.get("id")) is not int or not isinstance(token.get("content"), str):
            raise DataError(f"{file}: added_tokens holds {str(token)[:60]!r}, no token with its id; give it as saved")
    # By their ids, in which order they are appended.
    return sorted(cast(list[AddedToken], tokens), key=lambda token: token["id"])
