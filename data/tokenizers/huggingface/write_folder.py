"""The files of a tokenizer that transformers loads: tokenizer.json, tokenizer_config.json, and the vocabulary's own."""

import json

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from contexture.data.errors import DataError
from contexture.data.tokenizers import wordpiece
from contexture.data.tokenizers.base import Tokenizer, WithAddedTokens
from contexture.data.tokenizers.byte_pair import END, ByteBPE, Gpt1BPE
from contexture.data.tokenizers.huggingface.known_options import (
    LONGEST_WORD,
    MORE,
    PAIR,
    PLAIN,
    SETTINGS,
    WHOLE,
    JsonObject,
    Special,
)
from contexture.data.tokenizers.wordpiece import CLS, MASK, PAD, SEP, UNK, WordPiece


def transformers_files(tokenizer: Tokenizer, length: int, special: Special, notes: list[str]) -> dict[str, bytes]:
    """Returns the files from which transformers makes its fast tokenizer.

    Args:
        tokenizer: the tokenizer.
        length: the longest text of the model.
        special: the names of special tokens beyond the kind's own.
        notes: receives what the user should know.

    Raises:
        DataError: for a kind that transformers has no fast tokenizer for.
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
    # Appended in their order, so that they have the ids that they have here.
    made.add_special_tokens([tokenizers.AddedToken(name, normalized=False, special=True) for name in names])
    tokens = {name: token for name, token in special.items() if isinstance(token, str)}
    # Only tokens that the vocabulary has: adding another would append it.
    named = {name: token for name, token in tokens.items() if made.token_to_id(token) is not None}
    # Tokens without a name of their own.
    more = [name for name in dict.fromkeys([*special.get(MORE, ()), *names]) if name not in named.values()]
    more = [name for name in more if made.token_to_id(name) is not None]
    made.add_special_tokens([*named.values(), *more])
    settings |= {**named, **({MORE: more} if more else {})}
    settings |= {"model_max_length": length, "clean_up_tokenization_spaces": False}
    return {WHOLE: made.to_str(pretty=True).encode(), SETTINGS: _json(settings), **files}


Made = tuple[tokenizers.Tokenizer, JsonObject, dict[str, bytes]]
"""A tokenizer of the library, the content of tokenizer_config.json, and further files."""


def _json(tree: JsonObject) -> bytes:
    return (json.dumps(tree, indent=2, ensure_ascii=False) + "\n").encode()


def _bert_files(base: WordPiece) -> Made:
    ids = {piece: number for number, piece in enumerate(base.vocabulary)}
    made = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=UNK, max_input_chars_per_word=base.longest_word))
    # None means "as lowercase" in transformers.
    accents = None if base.strip_accents == base.lowercase else base.strip_accents
    made.normalizer = normalizers.BertNormalizer(  # pyright: ignore[reportAttributeAccessIssue]
        clean_text=True, handle_chinese_chars=True, strip_accents=accents, lowercase=base.lowercase
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # pyright: ignore[reportAttributeAccessIssue]
    made.decoder = decoders.WordPiece(prefix="##")  # pyright: ignore[reportAttributeAccessIssue]
    made.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single=f"{CLS}:0 $A:0 {SEP}:0",
        pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1",
        special_tokens=[(CLS, base.cls), (SEP, base.sep)],
    )
    # They are in the vocabulary and keep their ids; this marks them as special.
    made.add_special_tokens([PAD, UNK, CLS, SEP, MASK])
    # transformers' BertTokenizer has one fixed limit of a word's length; only tokenizer.json can hold another one.
    its_own = base.longest_word == LONGEST_WORD
    settings: JsonObject = {"tokenizer_class": "BertTokenizer" if its_own else PLAIN[0]}
    settings |= {"pad_token": PAD, "unk_token": UNK, "cls_token": CLS, "sep_token": SEP, "mask_token": MASK}
    settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    if its_own:
        settings |= {"do_lower_case": base.lowercase, "strip_accents": accents, "tokenize_chinese_chars": True}
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
        # GPT-2 has one token for all of these.
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
