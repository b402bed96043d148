"""Options of transformers' tokenizers: each is read, changes no id, or is refused by its name."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from contexture.data.errors import DataError
from contexture.data.tokenizers.byte_pair import ByteBPE, Gpt1BPE
from contexture.data.tokenizers.wordpiece import CLS, MASK, SEP, UNK, WordPiece

PAIR = ("vocab.json", "merges.txt")
WHOLE, SETTINGS, NAMES = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
LONGEST_WORD = 100
"""transformers' limit, where the original has 200."""
MORE = "additional_special_tokens"
JsonObject: TypeAlias = dict[str, Any]
Special: TypeAlias = dict[str, str | list[str]]
"""The names of a folder's special tokens: {"pad_token": "[PAD]", …}, those without a name in a list under `MORE`."""

PLAIN = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes that do what tokenizer.json says. The others take its vocabulary alone, and their options from
tokenizer_config.json."""
_CLASSES = {
    WordPiece.kind: ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "ErnieTokenizer"),
    ByteBPE.kind: ("GPT2Tokenizer",),
    Gpt1BPE.kind: ("OpenAIGPTTokenizer",),
}
_BERT_STEPS = {"type": ("BertNormalizer",), "clean_text": (True,), "handle_chinese_chars": (True,)}
_STEPS: dict[str, tuple[Mapping[str, tuple[object, ...]] | None, Mapping[str, tuple[object, ...]]]] = {
    WordPiece.kind: (_BERT_STEPS, {"type": ("BertPreTokenizer",)}),
    Gpt1BPE.kind: (
        {**_BERT_STEPS, "lowercase": (True,), "strip_accents": (None, True)},
        {"type": ("BertPreTokenizer",)},
    ),
    ByteBPE.kind: (None, {"type": ("ByteLevel",), "add_prefix_space": (False,), "use_regex": (True,)}),
}
"""The steps of tokenizer.json that clean text and cut it, by kind: the values that an option may have. One that is left
out has the first."""
# BPE's dropout leaves out merges at random, and `ignore_merges` keeps words whole that the vocabulary has.
_WHOLE_WORD = {"continuing_subword_prefix": (None, ""), "dropout": (None, 0), "ignore_merges": (False, None)}
_MODEL: dict[str, Mapping[str, tuple[object, ...]]] = {
    WordPiece.kind: {"unk_token": (UNK,), "continuing_subword_prefix": ("##",)},
    ByteBPE.kind: {**_WHOLE_WORD, "end_of_word_suffix": (None, "")},
    Gpt1BPE.kind: {
        **_WHOLE_WORD,
        "end_of_word_suffix": ("</w>",),
        "unk_token": ("<unk>",),
        "fuse_unk": (False, None),
        "byte_fallback": (False, None),
    },
}
_READ = {"type", "vocab", "merges", "max_input_chars_per_word", "unk_token", "fuse_unk", "byte_fallback"}
"""Options of the model that are read. A byte vocabulary spells every text, so that those for unknown ones mean
nothing."""
_PARTS = {
    "version",
    "truncation",
    "padding",
    "added_tokens",
    "normalizer",
    "pre_tokenizer",
    "post_processor",
    "decoder",
    "model",
}
_AROUND: dict[str, tuple[list[str], ...]] = {
    WordPiece.kind: ([f"{CLS}:0", "A:0", f"{SEP}:0"], [f"{CLS}:0", "A:0", f"{SEP}:0", "B:1", f"{SEP}:1"])
}
"""The special tokens around a text and a pair, with their segments."""
_NAMED = {"unk_token": UNK, "cls_token": CLS, "sep_token": SEP, "mask_token": MASK}


def check_settings(folder: Path, settings: JsonObject, config: JsonObject, kind: str) -> bool:
    """Returns whether tokenizer.json alone says how text is split.

    Args:
        folder: the tokenizer's folder.
        settings: the content of tokenizer_config.json.
        config: the content of config.json.
        kind: the kind of tokenizer.

    Raises:
        DataError: for a class that splits text in another way, or special tokens of other names.
    """
    # Both files may name the class, and older folders name none: then it is the kind's first.
    named = settings.get("tokenizer_class") or config.get("tokenizer_class") or _CLASSES[kind][0]
    known = (*_CLASSES[kind], *PLAIN)
    # A class and its "Fast" twin split text alike.
    if not isinstance(named, str) or named not in known and named.removesuffix("Fast") not in known:
        raise DataError(
            f"{folder}: tokenizer_class is {str(named)[:60]!r}, not one of {', '.join(known)}; nothing else is known"
        )
    # RoBERTa's way of reading a text's first word; GPT-2's vocabulary is meant here.
    if settings.get("add_prefix_space"):
        raise DataError(f"{folder / SETTINGS}: add_prefix_space is set, which is not known here; save it without")
    if kind == WordPiece.kind:
        # WordPiece finds its special tokens by these names alone.
        for name, expected in _NAMED.items():
            if (token := content_of(settings.get(name))) not in (None, expected):
                raise DataError(
                    f"{folder}: {name} is {str(token)[:40]!r}, and a BERT's is {expected}; nothing else is known"
                )
    return named in PLAIN


def content_of(token: object) -> object:
    """Returns the text of a special token, which may be written as an object."""
    return token.get("content") if isinstance(token, dict) else token


def check_whole(file: Path, whole: JsonObject, kind: str, plain: bool) -> None:
    """Checks tokenizer.json.

    Args:
        file: its path.
        whole: its content.
        kind: the kind of tokenizer.
        plain: whether the special tokens that it puts around texts are used.

    Raises:
        DataError: when it cleans, cuts, spells or surrounds text in another way than the kind's own, or has an option
            that is not known.
    """
    # Options that are not known at all.
    model: JsonObject = whole["model"]
    # An option that nobody knows here may change ids: it is refused, and not passed over.
    for what, options, known in (("", whole, _PARTS), ("model.", model, {*_READ, *_MODEL[kind]})):
        if unknown := sorted(options.keys() - known):
            raise DataError(f"{file}: {what}{unknown[0][:60]} is an option that is not known here; save it without")
    # How text is cleaned and cut.
    for name, expected in zip(("normalizer", "pre_tokenizer"), _STEPS[kind], strict=True):
        step = whole.get(name)
        # None: byte vocabularies take text as it is, without a normaliser.
        fits = step is None if expected is None else isinstance(step, dict) and not _odd(step, expected)
        if not fits:
            # The message shows the kind's own step, with the first value of each option.
            wanted = expected and {key: values[0] for key, values in expected.items()}
            raise DataError(
                f"{file}: its {name} is {str(step)[:80]}, and {kind} here has {wanted}; nothing else is known"
            )
    # What a file leaves out has the library's default: of a BPE none at all.
    left_out = {} if kind == WordPiece.kind else {"unk_token": None, "end_of_word_suffix": None}
    for name in _odd({**left_out, **model}, _MODEL[kind]):
        raise DataError(
            f"{file}: model.{name} is {str(model.get(name))[:40]!r}, and {kind} here has {_MODEL[kind][name][0]!r}; "
            "nothing else is known"
        )
    # Other classes put their own special tokens around texts, whatever the file says.
    around = [*_around(whole.get("post_processor"))] if plain else []
    # Nothing around a text is accepted as well: `layouts` puts special tokens there, whatever the file says.
    if any(parts not in (["A:0"], ["A:0", "B:0"], ["A:0", "B:1"], *_AROUND.get(kind, ())) for parts in around):
        raise DataError(
            f"{file}: its post_processor puts {' '.join(max(around, key=len))[:80]}, and {kind} here has "
            f"{' '.join(_AROUND.get(kind, (['A'],))[-1])}; nothing else is known"
        )


def _odd(options: JsonObject, expected: Mapping[str, tuple[object, ...]]) -> list[str]:
    """Returns the names of options that have none of the values expected."""
    values = {name: options.get(name, allowed[0]) for name, allowed in expected.items()}
    # False is not 0 here.
    return [
        name
        for name, allowed in expected.items()
        if not any(values[name] == one and isinstance(values[name], bool) == isinstance(one, bool) for one in allowed)
    ]


def _around(step: object) -> Iterator[list[str]]:
    """Yields what a post_processor makes of a text and of a pair: ["[CLS]:0", "A:0", "[SEP]:0"]."""
    kind = step.get("type") if isinstance(step, dict) else None
    # A ByteLevel step changes places only, and adds no token.
    if step is None or kind == "ByteLevel":
        return
    try:
        assert isinstance(step, dict)
        if kind == "Sequence":
            for one in step["processors"]:
                yield from _around(one)
        elif kind == "BertProcessing":
            cls, sep = f"{step['cls'][0]}:0", step["sep"][0]
            yield [cls, "A:0", f"{sep}:0"]
            yield [cls, "A:0", f"{sep}:0", "B:1", f"{sep}:1"]
        elif kind == "TemplateProcessing":
            for parts in (step["single"], step["pair"]):
                items = [item for part in parts for item in part.values()]
                yield [f"{item['id']}:{item['type_id']}" for item in items]
        else:
            yield [str(kind)]
    # A step of another shape is given as it is written, which the caller refuses.
    except (AssertionError, KeyError, IndexError, TypeError, AttributeError):
        yield [str(step)]
