"""Tokenizers in the folders of transformers: read, and written so that transformers loads them again.

A folder has `tokenizer.json`, or BERT's `vocab.txt`, or a pair `vocab.json` and `merges.txt`; beside them
`tokenizer_config.json`.
"""

import json
from pathlib import Path
from typing import Any, NotRequired, TypeAlias, TypedDict, cast

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from contexture.data.errors import DataError
from contexture.data.tokenizers import tokenizer_files, wordpiece
from contexture.data.tokenizers.base import Tokenizer, WithAddedTokens, with_added_tokens
from contexture.data.tokenizers.byte_pair import END, ByteBPE, Gpt1BPE, checked_pair, is_added, ordered, read_pair
from contexture.data.tokenizers.registry import load_tokenizer
from contexture.data.tokenizers.wordpiece import CLS, MASK, PAD, SEP, UNK, WordPiece

PAIR = ("vocab.json", "merges.txt")
_WHOLE, _SETTINGS = "tokenizer.json", "tokenizer_config.json"
_LONGEST_WORD = 100
"""transformers' limit, where the original has 200."""
_LINE_END = "\u2028"
_MORE = "additional_special_tokens"
JsonObject: TypeAlias = dict[str, Any]
Special: TypeAlias = dict[str, str | list[str]]
"""The names of a folder's special tokens: {"pad_token": "[PAD]", …}, those without a name in a list under `_MORE`."""


class AddedToken(TypedDict):
    """A token that was added to a vocabulary, as tokenizer.json lists it."""

    content: str
    id: int
    special: NotRequired[bool]
    """False: text may spell it. In transformers it is then cut out of text before anything else."""


def open_published(
    folder: Path, kind: str, vocabulary: str, lowercase: bool | None, notes: list[str]
) -> tuple[Tokenizer, Special]:
    """Opens the tokenizer of a folder of transformers → (tokenizer, the names of its special tokens). It splits text as
    the folder's fast tokenizer does.

    kind        wordpiece, byte-bpe or gpt1-bpe
    vocabulary  another such folder to take instead, or a vocabulary's own file
    lowercase   of WordPiece; None: as the folder says, else whether the vocabulary has no capitals
    notes       receives what the user should know

    Differs: a special or added token that text spells out is text.

    Raises: DataError for files that are missing, damaged, or split text in another way.
    """
    source = Path(vocabulary or folder)
    its = (_WHOLE, PAIR[0]) if vocabulary else (_WHOLE, PAIR[0], wordpiece.VOCABULARY)
    if vocabulary and not any((source / name).is_file() for name in its):
        return _as_transformers(of_kind(open_vocabulary(source, lowercase, notes), kind, source)), {}
    settings = _object(source / _SETTINGS) if (source / _SETTINGS).is_file() else {}
    whole = _object(source / _WHOLE) if (source / _WHOLE).is_file() else None
    # RoBERTa's way of reading a text's first word; GPT-2's vocabulary is meant here.
    if settings.get("add_prefix_space"):
        raise DataError(f"{source / _SETTINGS}: add_prefix_space is set, which is not known here; save it without")
    added = _added(source, whole)
    if plain := [token["content"] for token in added if not token.get("special", True)]:
        notes.append(
            f"{len(plain)} added tokens that text may spell ({plain[0]!r}) are cut as text: they keep their ids alone"
        )
    if kind == WordPiece.kind:
        tokenizer: Tokenizer = _wordpiece(source, settings, whole, added, lowercase, notes)
    else:
        tokenizer = _byte_pairs(source, kind, whole, added)
    named = {name: token.get("content") if isinstance(token, dict) else token for name, token in settings.items()
             if name.endswith("_token")}  # fmt: skip
    special = {name: token for name, token in named.items() if isinstance(token, str)}
    usual = {*special.values(), *wordpiece.SPECIAL, END, "<unk>"}
    more = [token["content"] for token in added if token.get("special", True) and token["content"] not in usual]
    return tokenizer, {**special, **({_MORE: more} if more else {})}


def _as_transformers(tokenizer: Tokenizer) -> Tokenizer:
    """Returns the same vocabulary, splitting text as transformers does."""
    if isinstance(tokenizer, WordPiece):
        return WordPiece(tokenizer.vocabulary, tokenizer.lowercase, longest_word=_LONGEST_WORD)
    if isinstance(tokenizer, Gpt1BPE):
        return Gpt1BPE(tokenizer.vocabulary, tokenizer.merges, cleaned="transformers")
    return tokenizer


def _byte_pairs(folder: Path, kind: str, whole: JsonObject | None, added: list[AddedToken]) -> Tokenizer:
    file = folder / (PAIR[0] if whole is None else _WHOLE)
    if whole is None:
        if not file.is_file():
            raise _no_vocabulary(folder, PAIR[0])
        vocabulary, merges = read_pair(folder, *PAIR)
        entries = [(token, number) for number, token in enumerate(vocabulary)]
        lines = [(str(folder / PAIR[1]), " ".join(merge)) for merge in merges]
    else:
        _check_steps(file, whole, kind)
        entries, given = _entries(file, whole, "BPE"), whole["model"].get("merges")
        if not isinstance(given, list) or not all(isinstance(m, str | list) for m in given):
            raise DataError(f"{file}: model.merges is no list of merges; give the file as it was saved")
        lines = [
            (f"{file}: merge {n}", m if isinstance(m, str) else " ".join(map(str, m))) for n, m in enumerate(given)
        ]
    # Added tokens that look like special ones of the vocabulary (<|endoftext|>) belong to it, and the others stand
    # behind it: from the first one that does not look so on.
    known = dict(entries)
    more = [(token["content"], token["id"]) for token in added if token["content"] not in known]
    own = next((n for n, (token, _) in enumerate(more) if not is_added(token)), len(more))
    entries, more = [*entries, *more[:own]], more[own:]
    tokens = checked_pair(entries, file, lines, file)
    tokenizer = ByteBPE(*tokens, str(file)) if kind == ByteBPE.kind else Gpt1BPE(*tokens, str(file), "transformers")
    if not more:
        return tokenizer
    ordered([*entries, *more], file)
    return with_added_tokens(tokenizer, [token for token, _ in more])


_BERT_STEPS = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
_STEPS: dict[str, tuple[JsonObject | None, JsonObject]] = {
    "wordpiece": (_BERT_STEPS, {"type": "BertPreTokenizer"}),
    "gpt1-bpe": ({**_BERT_STEPS, "lowercase": True}, {"type": "BertPreTokenizer"}),
    "byte-bpe": (None, {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}),
}
"""The steps of tokenizer.json that clean text and cut it, by kind."""


def _check_steps(file: Path, whole: JsonObject, kind: str) -> None:
    """Raises: DataError where text is cleaned or cut in another way than the kind's own."""
    for name, expected in zip(("normalizer", "pre_tokenizer"), _STEPS[kind], strict=True):
        step = whole.get(name)
        # Keys that are left out have these values as their defaults.
        fits = step is None if expected is None else isinstance(step, dict) and all(
            step.get(key, value) == value for key, value in expected.items()
        )  # fmt: skip
        if not fits:
            raise DataError(
                f"{file}: its {name} is {str(step)[:80]}, and {kind} here has {expected}; nothing else is known"
            )


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
    capitals = any(piece != piece.lower() for piece in vocabulary if piece.isalpha())
    reason = "has capitals: text keeps its case" if capitals else "has no capitals: text is lower-cased"
    notes.append(f"the vocabulary {reason} (--lowercase yes or no says otherwise)")
    return not capitals


def _wordpiece(
    folder: Path,
    settings: JsonObject,
    whole: JsonObject | None,
    added: list[AddedToken],
    lowercase: bool | None,
    notes: list[str],
) -> WordPiece:
    longest, normal = _LONGEST_WORD, {}
    if whole is not None:
        entries, normal = _entries(file := folder / _WHOLE, whole, "WordPiece"), whole.get("normalizer") or {}
        _check_steps(file, whole, WordPiece.kind)
        longest = whole["model"].get("max_input_chars_per_word", longest)
        if type(longest) is not int or not 1 <= longest <= 1_000_000:
            raise DataError(f"{file}: model.max_input_chars_per_word is {str(longest)[:40]}; give the file as saved")
        if whole["model"].get("continuing_subword_prefix", "##") != "##":
            raise DataError(f"{file}: model.continuing_subword_prefix is not ##, as a BERT vocabulary's is")
    elif (file := folder / wordpiece.VOCABULARY).is_file():
        entries = [(piece, number) for number, piece in enumerate(tokenizer_files.read_lines(file))]
    else:
        raise _no_vocabulary(folder, wordpiece.VOCABULARY)
    known = {piece for piece, _ in entries}
    more = [(token["content"], token["id"]) for token in added if token["content"] not in known]
    # In vocab.txt a token's id is its line number, and added tokens follow; tokenizer.json gives every token its id.
    vocabulary = [piece for piece, _ in entries] if whole is None and not more else ordered([*entries, *more], file)
    if whole is not None and "" in vocabulary:  # of the Chinese vocabulary's line ends transformers strips two pieces
        vocabulary = [piece + _LINE_END if piece in ("", "##") else piece for piece in vocabulary]
    # tokenizer_config.json comes first, then tokenizer.json, as in transformers.
    options = {
        "lowercase": settings.get("do_lower_case", normal.get("lowercase")),
        "strip_accents": settings.get("strip_accents", normal.get("strip_accents")),
        "chinese": settings.get("tokenize_chinese_chars", True),
    }
    if lowercase is None:
        lowercase = options["lowercase"]
    if not isinstance(lowercase, bool):
        lowercase = _guessed(tuple(vocabulary), notes)
    if options["strip_accents"] not in (None, lowercase) or options["chinese"] is not True:
        accents, chinese = (repr(options[name])[:40] for name in ("strip_accents", "chinese"))
        raise DataError(
            f"{folder}: the tokenizer has strip_accents={accents}, tokenize_chinese_chars={chinese}, lower-case "
            f"{lowercase}; here accents go with the case, and Chinese is parted"
        )
    return WordPiece(vocabulary, lowercase, str(file), longest)


def _no_vocabulary(folder: Path, other: str) -> DataError:
    return DataError(f"{folder}: no {_WHOLE} and no {other}; put one of them beside the model, or give --vocabulary")


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
    if not isinstance(model, dict) or not isinstance(vocab, dict) or model.get("type", kind) != kind:
        got = model.get("type") if isinstance(model, dict) else None
        raise DataError(f"{file}: model is of type {got!r}, and a {kind} with its vocabulary is wanted; give its own")
    return list(vocab.items())


def _added(folder: Path, whole: JsonObject | None) -> list[AddedToken]:
    """Returns the tokens that were added to a vocabulary, in the order of their ids."""
    file = folder / (_WHOLE if whole is not None else "added_tokens.json")
    if whole is not None:
        tokens = whole.get("added_tokens") or []
    else:
        tokens = [{"content": token, "id": n} for token, n in (_object(file) if file.is_file() else {}).items()]
    for token in tokens if isinstance(tokens, list) else [None]:
        if not isinstance(token, dict) or type(token.get("id")) is not int or not isinstance(token.get("content"), str):
            raise DataError(f"{file}: added_tokens holds {str(token)[:60]!r}, no token with its id; give it as saved")
    return sorted(cast(list[AddedToken], tokens), key=lambda token: token["id"])


def transformers_files(tokenizer: Tokenizer, length: int, special: Special, notes: list[str]) -> dict[str, bytes]:
    """Returns the files from which transformers makes its fast tokenizer.

    length: the longest text of the model; special: the names of special tokens beyond the kind's own.

    Raises: DataError for a kind that transformers has no fast tokenizer for.
    """
    base, names = (tokenizer.base, list(tokenizer.names)) if isinstance(tokenizer, WithAddedTokens) else (tokenizer, [])
    if isinstance(base, WordPiece):
        made, settings, files = _bert_files(base)
    elif isinstance(base, ByteBPE):
        made, settings, files = _byte_files(base)
    elif isinstance(base, Gpt1BPE):
        made, settings, files = _gpt1_files(base, notes)
    else:
        raise DataError(f"transformers has no fast tokenizer of kind {tokenizer.kind}; export a run with another one")
    made.add_special_tokens([tokenizers.AddedToken(name, normalized=False, special=True) for name in names])
    tokens = {name: token for name, token in special.items() if isinstance(token, str)}
    named = {name: token for name, token in tokens.items() if made.token_to_id(token) is not None}
    more = [name for name in dict.fromkeys([*special.get(_MORE, ()), *names]) if name not in named.values()]
    more = [name for name in more if made.token_to_id(name) is not None]
    made.add_special_tokens([*named.values(), *more])
    settings |= {**named, **({_MORE: more} if more else {})}
    settings |= {"model_max_length": length, "clean_up_tokenization_spaces": False}
    return {_WHOLE: made.to_str(pretty=True).encode(), _SETTINGS: _json(settings), **files}


Made = tuple[tokenizers.Tokenizer, JsonObject, dict[str, bytes]]
"""A tokenizer of the library, the content of tokenizer_config.json, and further files."""


def _json(tree: JsonObject) -> bytes:
    return (json.dumps(tree, indent=2, ensure_ascii=False) + "\n").encode()


def _bert_files(base: WordPiece) -> Made:
    ids = {piece: number for number, piece in enumerate(base.vocabulary)}
    made = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=UNK, max_input_chars_per_word=base.longest_word))
    made.normalizer = normalizers.BertNormalizer(  # pyright: ignore[reportAttributeAccessIssue]
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=base.lowercase
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # pyright: ignore[reportAttributeAccessIssue]
    made.decoder = decoders.WordPiece(prefix="##")  # pyright: ignore[reportAttributeAccessIssue]
    made.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single=f"{CLS}:0 $A:0 {SEP}:0",
        pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1",
        special_tokens=[(CLS, base.cls), (SEP, base.sep)],
    )
    made.add_special_tokens([PAD, UNK, CLS, SEP, MASK])
    # transformers' BertTokenizer has one fixed limit of a word's length; another limit stands only in tokenizer.json.
    its_own = base.longest_word == _LONGEST_WORD
    settings: JsonObject = {"tokenizer_class": "BertTokenizer" if its_own else "PreTrainedTokenizerFast"}
    settings |= {"pad_token": PAD, "unk_token": UNK, "cls_token": CLS, "sep_token": SEP, "mask_token": MASK}
    settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    if its_own:
        settings |= {"do_lower_case": base.lowercase, "strip_accents": None, "tokenize_chinese_chars": True}
    return made, settings, {wordpiece.VOCABULARY: base.files()[wordpiece.VOCABULARY]}


def _pair_files(base: ByteBPE | Gpt1BPE) -> dict[str, bytes]:
    merges = "".join(f"{first} {second}\n" for first, second in base.merges)
    ids = {token: number for number, token in enumerate(base.vocabulary)}
    return {PAIR[0]: json.dumps(ids, ensure_ascii=False).encode(), PAIR[1]: f"#version: 0.2\n{merges}".encode()}


def _byte_files(base: ByteBPE) -> Made:
    ids = {token: number for number, token in enumerate(base.vocabulary)}
    made = tokenizers.Tokenizer(models.BPE(ids, list(base.merges)))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    made.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    made.post_processor = processors.ByteLevel(trim_offsets=False)  # pyright: ignore[reportAttributeAccessIssue]
    settings: JsonObject = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False}
    if base.end is not None:
        made.add_special_tokens([END])
        settings |= {"bos_token": END, "eos_token": END, "unk_token": END}
    return made, settings, _pair_files(base)


def _gpt1_files(base: Gpt1BPE, notes: list[str]) -> Made:
    if base.cleaned == "original":
        notes.append(
            "transformers has no port of GPT-1's clean-up of text: its tokenizer cleans and cuts text as BERT's does"
        )
    ids = {token: number for number, token in enumerate(base.vocabulary)}
    made = tokenizers.Tokenizer(models.BPE(ids, list(base.merges), unk_token="<unk>", end_of_word_suffix="</w>"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)  # pyright: ignore[reportAttributeAccessIssue]
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # pyright: ignore[reportAttributeAccessIssue]
    made.decoder = decoders.BPEDecoder(suffix="</w>")  # pyright: ignore[reportAttributeAccessIssue]
    made.add_special_tokens(["<unk>"])
    return made, {"tokenizer_class": "OpenAIGPTTokenizer", "unk_token": "<unk>"}, _pair_files(base)
