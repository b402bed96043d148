"""Tokenizers as transformers' folders hold them: read as they are, and written so that it loads them again.

A folder has `tokenizer.json`, or BERT's `vocab.txt`, or a pair `vocab.json` and `merges.txt`; beside them
`tokenizer_config.json`.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from data import vocabulary as vocabularies
from data import wordpiece
from data.bpe import END, ByteBPE, Gpt1BPE, checked_pair, is_added, ordered
from data.errors import DataError
from data.tokenizer import Grown, Tokenizer, load_tokenizer, with_specials
from data.wordpiece import CLS, MASK, PAD, SEP, UNK, WordPiece

PAIR = ("vocab.json", "merges.txt")
_WHOLE, _SETTINGS = "tokenizer.json", "tokenizer_config.json"
_LONGEST_WORD = 100
"""transformers' limit, where the original has 200."""
_LINE_END = "\u2028"
Say = Callable[[str], None]


def open_published(folder: Path, kind: str, vocabulary: str, lowercase: bool | None, say: Say) -> Tokenizer:
    """The tokenizer of a folder of transformers, of a kind (wordpiece, byte-bpe or gpt1-bpe), which cuts text as its
    fast tokenizer does; or of the file `vocabulary`. lowercase: of WordPiece, where it is known; else what the folder
    says, else whether the vocabulary has capitals.

    A special token spelled out in text is text. Raises: DataError for what is missing, damaged, or another tokenizer.
    """
    if vocabulary:
        return of_kind(open_vocabulary(Path(vocabulary), lowercase, say), kind, Path(vocabulary))
    settings = _object(folder / _SETTINGS) if (folder / _SETTINGS).is_file() else {}
    whole = _object(folder / _WHOLE) if (folder / _WHOLE).is_file() else None
    if kind == WordPiece.kind:
        return _wordpiece(folder, settings, whole, lowercase, say)
    if settings.get("add_prefix_space"):
        raise DataError(f"{folder / _SETTINGS}: add_prefix_space is set, which is not known here; save it without")
    if whole is None:
        if not (folder / PAIR[0]).is_file():
            raise _no_vocabulary(folder, PAIR[0])
        made: Tokenizer = (
            ByteBPE.open(folder, PAIR) if kind == ByteBPE.kind else Gpt1BPE.open(folder, PAIR, "transformers")
        )
        return made
    file = folder / _WHOLE
    entries, added = _entries(file, whole, "BPE")
    merges = whole["model"].get("merges")
    if not isinstance(merges, list) or not all(isinstance(m, str | list) for m in merges):
        raise DataError(f"{file}: model.merges is no list of merges; give the file as it was saved")
    lines = [(f"{file}: merge {n}", m if isinstance(m, str) else " ".join(map(str, m))) for n, m in enumerate(merges)]
    while added and is_added(added[0][0]):
        entries.append(added.pop(0))
    tokens = checked_pair(entries, file, lines, file)
    if kind == ByteBPE.kind:
        tokenizer: Tokenizer = ByteBPE(*tokens, where=str(file))
    else:
        tokenizer = Gpt1BPE(*tokens, where=str(file), cleaned="transformers")
    if added:
        ordered([*entries, *added], file)
        tokenizer = with_specials(tokenizer, [token for token, _ in added])
    return tokenizer


def open_vocabulary(file: Path, lowercase: bool | None, say: Say) -> Tokenizer:
    """A vocabulary as its makers published it; of WordPiece, lowercase is guessed where it is not known, and said."""
    tokenizer = load_tokenizer(file, bool(lowercase))
    if isinstance(tokenizer, WordPiece) and lowercase is None:
        tokenizer = WordPiece(tokenizer.vocabulary, _guessed(tokenizer.vocabulary, say), str(file))
    return tokenizer


def of_kind(tokenizer: Tokenizer, kind: str, where: Path) -> Tokenizer:
    """The same tokenizer. Raises: DataError where it is of another kind."""
    if tokenizer.kind != kind:
        raise DataError(f"{where}: a vocabulary of kind {tokenizer.kind}, and the model reads {kind}; give its own")
    return tokenizer


def _guessed(vocabulary: tuple[str, ...], say: Say) -> bool:
    capitals = any(piece != piece.lower() for piece in vocabulary if piece.isalpha())
    told = "has capitals: text keeps its case" if capitals else "has no capitals: text is lower-cased"
    say(f"the vocabulary {told} (--lowercase yes or no says otherwise)")
    return not capitals


def _wordpiece(folder: Path, settings: Any, whole: Any, lowercase: bool | None, say: Say) -> Tokenizer:
    longest, normal = _LONGEST_WORD, (whole or {}).get("normalizer") or {}
    if whole is not None:
        entries, added = _entries(file := folder / _WHOLE, whole, "WordPiece")
        vocabulary = ordered([*entries, *added], file)
        if "" in vocabulary:  # of the Chinese vocabulary's line ends transformers strips two pieces
            vocabulary = [piece + _LINE_END if piece in ("", "##") else piece for piece in vocabulary]
        longest = whole["model"].get("max_input_chars_per_word", longest)
        if type(longest) is not int or longest < 1 or not isinstance(normal, dict):
            raise DataError(f"{file}: model.max_input_chars_per_word or normalizer is damaged; give the file as saved")
        if whole["model"].get("continuing_subword_prefix", "##") != "##":
            raise DataError(f"{file}: model.continuing_subword_prefix is not ##, as a BERT vocabulary's is")
    elif (file := folder / wordpiece.VOCABULARY).is_file():
        vocabulary = vocabularies.read_lines(file)
    else:
        raise _no_vocabulary(folder, wordpiece.VOCABULARY)
    said = {
        "lowercase": settings.get("do_lower_case", normal.get("lowercase")),
        "strip_accents": settings.get("strip_accents", normal.get("strip_accents")),
        "chinese": settings.get("tokenize_chinese_chars", normal.get("handle_chinese_chars", True)),
    }
    if lowercase is None:
        lowercase = said["lowercase"]
    if not isinstance(lowercase, bool):
        lowercase = _guessed(tuple(vocabulary), say)
    if said["strip_accents"] not in (None, lowercase) or said["chinese"] is not True:
        raise DataError(
            f"{folder}: the tokenizer has strip_accents={said['strip_accents']}, tokenize_chinese_chars="
            f"{said['chinese']}, lower-case {lowercase}; here accents go with the case, and Chinese is parted"
        )
    return WordPiece(vocabulary, lowercase, str(file), longest)


def _no_vocabulary(folder: Path, other: str) -> DataError:
    return DataError(f"{folder}: no {_WHOLE} and no {other}; put one of them beside the model, or give --vocabulary")


def _object(file: Path) -> dict[str, Any]:
    found = vocabularies.read_json(file)
    if not isinstance(found, dict):
        raise DataError(f"{file}: not a JSON object; give the file as it was saved")
    return found


Entries = list[tuple[str, int]]


def _entries(file: Path, whole: Mapping[str, Any], kind: str) -> tuple[Entries, Entries]:
    """(the model's tokens with their ids, those that were added behind them)."""
    model, added = whole.get("model"), whole.get("added_tokens") or []
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(model, dict) or not isinstance(vocab, dict) or model.get("type", kind) != kind:
        got = model.get("type") if isinstance(model, dict) else None
        raise DataError(
            f"{file}: model is of type {got!r}, and a {kind} with its vocabulary is wanted; give the model's"
        )
    more: Entries = []
    for token in added if isinstance(added, list) else [None]:
        if not isinstance(token, dict) or type(token.get("id")) is not int or not isinstance(token.get("content"), str):
            raise DataError(f"{file}: added_tokens holds {str(token)[:60]!r}, no token with its id; give it as saved")
        if token["content"] not in vocab:
            more.append((token["content"], token["id"]))
    return list(vocab.items()), sorted(more, key=lambda entry: entry[1])


def transformers_files(tokenizer: Tokenizer, length: int, say: Say) -> dict[str, bytes]:
    """The files from which transformers makes its fast tokenizer; length: the longest text of the model.

    Raises: DataError for a kind that it has none of.
    """
    base, names = (tokenizer.base, list(tokenizer.names)) if isinstance(tokenizer, Grown) else (tokenizer, [])
    if isinstance(base, WordPiece):
        made, settings, files = _bert_files(base)
    elif isinstance(base, ByteBPE):
        made, settings, files = _byte_files(base)
    elif isinstance(base, Gpt1BPE):
        made, settings, files = _gpt1_files(base, say)
    else:
        raise DataError(f"transformers has no fast tokenizer of kind {tokenizer.kind}; export a run with another one")
    made.add_special_tokens([tokenizers.AddedToken(name, normalized=False, special=True) for name in names])
    if names:
        settings["additional_special_tokens"] = names
    settings |= {"model_max_length": length, "clean_up_tokenization_spaces": False}
    return {_WHOLE: made.to_str(pretty=True).encode(), _SETTINGS: _json(settings), **files}


Made = tuple[tokenizers.Tokenizer, dict[str, Any], dict[str, bytes]]


def _json(tree: Any) -> bytes:
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
    # Its BertTokenizer knows one limit of a word's length; with another, the whole file is what it must read.
    its_own = base.longest_word == _LONGEST_WORD
    settings: dict[str, Any] = {"tokenizer_class": "BertTokenizer" if its_own else "PreTrainedTokenizerFast"}
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
    settings: dict[str, Any] = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False}
    if base.end is not None:
        made.add_special_tokens([END])
        settings |= {"bos_token": END, "eos_token": END, "unk_token": END}
    return made, settings, _pair_files(base)


def _gpt1_files(base: Gpt1BPE, say: Say) -> Made:
    if base.cleaned == "original":
        say("transformers has no port of GPT-1's clean-up of text: its tokenizer cleans and cuts text as BERT's does")
    ids = {token: number for number, token in enumerate(base.vocabulary)}
    made = tokenizers.Tokenizer(models.BPE(ids, list(base.merges), unk_token="<unk>", end_of_word_suffix="</w>"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)  # pyright: ignore[reportAttributeAccessIssue]
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # pyright: ignore[reportAttributeAccessIssue]
    made.decoder = decoders.BPEDecoder(suffix="</w>")  # pyright: ignore[reportAttributeAccessIssue]
    made.add_special_tokens(["<unk>"])
    return made, {"tokenizer_class": "OpenAIGPTTokenizer", "unk_token": "<unk>"}, _pair_files(base)
