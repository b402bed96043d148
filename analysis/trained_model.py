"""A run that stays loaded: `contexture.open(RUN)`. Importing this needs jax."""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

import numpy as np

from contexture.analysis import embed, fill, generate
from contexture.analysis.attention.gates import WordGates, word_gates
from contexture.analysis.attention.maps import AttentionMaps, Numbers, attention_maps
from contexture.analysis.call_arguments import options_of, texts_of, with_method_hints, words_of
from contexture.analysis.cosines import unit_length
from contexture.analysis.options import EmbedOptions, GenerateOptions, Layers, SensesOptions, is_single, layer_numbers
from contexture.analysis.pooling import SentencePool
from contexture.analysis.results import GeneratedText, TextScore
from contexture.analysis.scoring.families import token_scorer
from contexture.analysis.scoring.score import score
from contexture.analysis.scoring.scorer import TokenScorer
from contexture.analysis.senses.occurrences import given_sentences
from contexture.analysis.senses.word_senses import WordSenses, word_senses
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError
from contexture.data.families.splitting import Units
from contexture.data.inputs import as_list
from contexture.data.tokenizers.base import Tokenizer
from contexture.models.decode import DecodeParams
from contexture.models.model import Model
from contexture.models.shapes import Params
from contexture.train import mesh as meshes
from contexture.train.checkpoints.meta import Step
from contexture.train.checkpoints.transfer import Loaded, load_parameters
from contexture.train.evaluation.predict import Predictor
from contexture.train.run.trained_length import LengthWatch, trained_length
from contexture.train.run.vocabulary import read_tokenizer
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import read
from contexture.train.settings.sections import MeshConfig

logger = logging.getLogger(__name__)
Unit = Literal["sentences", "words", "tokens"]
T = TypeVar("T")


@with_method_hints
class TrainedModel:
    """The model of a run, with its trained parameters on the first device, ready for any number of calls.

    Where a method takes texts, it takes one string, a list, an iterator, or a column of pandas, polars or Arrow. One
    string gives one result, several give a list or an array with a row for each.

    The first call with a new shape compiles. Set `JAX_COMPILATION_CACHE_DIR` to keep compiled programs between starts.

    Attributes:
        run: the run's settings.
        folder: the run's folder.
        step: the training step of the loaded checkpoint.
        model: the network, a Flax module: `model.apply({"params": params}, batch)`.
        params: the network's parameters.
        tokenizer: text ↔ ids.
        labels: the labels of a fine-tuned run's task; () where it has none.
    """

    def __init__(self, run: str | Path, step: Step = None, finetune: Callable[..., Path] | None = None) -> None:
        """Loads a run, as `contexture.open` says, which also gives the function that trains a run from this one."""
        self.folder, self._finetune = Path(run), finetune
        self._record = read(self.folder)
        self.run: Run = self._record.run
        self.labels: tuple[str, ...] = self._record.labels
        self.tokenizer: Tokenizer = read_tokenizer(self.folder, self._record)
        self._mesh = meshes.build(MeshConfig(), meshes.find_devices()[:1])
        with self.computing():
            self._loaded: Loaded = load_parameters(self.folder, self.run, self.labels, self._mesh, step)
        self.model: Model = self._loaded.model
        self.params: Params = self._loaded.params
        self.step: int = self._loaded.step

    def __repr__(self) -> str:
        return f"<TrainedModel {str(self.folder)!r}: {self.run.family}, {self.run.objective}, step {self.step}>"

    @functools.cached_property
    def trained_length(self) -> int:
        """The length in tokens of the longest training sequences; the model's length where that is unknown."""
        return trained_length(self._record)

    def watch_lengths(self) -> LengthWatch:
        """Returns a watch that warns once per call of text longer than the training sequences."""
        return LengthWatch(self.trained_length)

    def computing(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context within which jax computes on the model's device."""
        return meshes.use(self._mesh, self.run.model.dtype)

    def _compute(self, function: Callable[[], T]) -> T:
        with self.computing():
            return function()

    # Vectors

    @overload
    def embed(
        self, texts: str, *, of: Unit = ..., pool: SentencePool = ..., layers: Layers = ..., batch: int = ...
    ) -> np.ndarray: ...
    @overload
    def embed(
        self,
        texts: Any,
        *,
        of: Literal["sentences"] = ...,
        pool: SentencePool = ...,
        layers: Layers = ...,
        batch: int = ...,
    ) -> np.ndarray: ...
    @overload
    def embed(
        self, texts: Any, *, of: Unit, pool: SentencePool = ..., layers: Layers = ..., batch: int = ...
    ) -> np.ndarray | list[np.ndarray]: ...
    def embed(
        self,
        texts: Any,
        *,
        of: Unit = "sentences",
        pool: SentencePool | None = None,
        layers: Layers = "last",
        batch: int = 64,
    ) -> np.ndarray | list[np.ndarray]:
        """Returns contextual vectors, float32.

            of="sentences"  an array [N, D], a vector for each text; of one string [D]
            of="words"      for each text an array [words, D]
            of="tokens"     for each text an array [tokens, D], a BERT's [CLS] and [SEP] too

        Args:
            texts: one text or several. For of="words" a text is split at white space, or given as a list of words.
            of: which vectors: "sentences", "words" or "tokens". A word of several pieces has the mean of their vectors.
            pool: how a sentence's vector comes from its tokens' vectors: "mean-words", the mean without a BERT's [CLS]
                and [SEP], the default; "mean", of all tokens; "last", the last token but [SEP]; "cls", a BERT's [CLS].
            layers: "last"; "all", with the context-free layer 0 first; a number from 0, or from -1 backwards; or
                several. "all" and several put a layer axis before the others: [N, layers, D], [layers, words, D].
            batch: texts at a time.

        Raises:
            DataError: when something is no text, the model lacks a layer, or options do not fit together.
        """
        # Options are checked before any text is read: an iterator may be long.
        how = embed.pool_of(of, pool)
        given, one = texts_of(texts)
        numbers, single = layer_numbers(layers, self.model.config.layers), is_single(layers)
        if of == "words":
            split = self.run.text.word_splitter(self.tokenizer, self.run.model.length)
            cut = [split(words_of(text, n), f"text {n}") for n, text in enumerate(given)]
            arrays = self._embed([each.units for each in cut], EmbedOptions(layers=numbers, batch=batch))
            arrays = [embed.word_vectors(array, each) for array, each in zip(arrays, cut, strict=True)]
        else:
            units = embed.units_of(given, self.model, self.tokenizer)
            arrays = self._embed(units, EmbedOptions(layers=numbers, pool=how, batch=batch))
        if single:
            arrays = [array[0] for array in arrays]
        if one:
            return arrays[0]
        if of != "sentences":
            return arrays
        # np.stack takes no empty list.
        return np.stack(arrays) if arrays else np.zeros((0, self.model.config.width), np.float32)

    def _embed(self, sentences: Sequence[Units], how: EmbedOptions) -> list[np.ndarray]:
        fixed, trained = (self.model, self.forward_params, self.tokenizer), self.watch_lengths()
        return self._compute(lambda: list(embed.embed(*fixed, sentences, how, trained=trained)))

    def similarity(
        self, first: Any, second: Any, *, pool: SentencePool = "mean-words", layers: str | int = "last"
    ) -> np.ndarray | float:
        """Returns the cosine of sentence vectors, an array [texts of first, texts of second]; of two strings a number.

        A text without a word has cosine 0 with all others.

        Args:
            first: one text or several: the rows. One string has no axis of rows.
            second: one text or several: the columns. One string has no axis of columns.
            pool: how a sentence's vector comes from its tokens' vectors, as in `embed`.
            layers: one layer, as in `embed`; several are a DataError.
        """
        if not is_single(layers):
            raise DataError(f"layers={layers} are several vectors of a text; give one layer")
        firsts, seconds = texts_of(first)[0], texts_of(second)[0]
        both = self.embed([*firsts, *seconds], pool=pool, layers=layers)
        a, b = both[: len(firsts)], both[len(firsts) :]
        cosines = unit_length(a) @ unit_length(b).T
        cosines = cosines[0] if isinstance(first, str) else cosines
        cosines = cosines[..., 0] if isinstance(second, str) else cosines
        return float(cosines) if cosines.ndim == 0 else cosines

    # Words

    def fill(self, texts: Any, top: int = 5) -> Any:
        """Predicts the `top` most probable tokens for each [MASK] of a text: [[{"token": "cat", "score": 0.61}, …], …].

        Args:
            texts: one text, or several, which give a list of such results.
            top: how many tokens for each [MASK], the most probable first. Scores are probabilities.

        Raises:
            DataError: when a text has no [MASK] or is longer than the model, or the model has no masked-LM head.
        """
        imported = self._record.imported
        if imported and "heads_mlm/bias" in imported.missing:
            logger.warning(
                "the masked-LM head of this imported run is randomly initialised; train it before using fill"
            )
        given, one = texts_of(texts)
        fixed, trained = (self.model, self.forward_params, self.tokenizer), self.watch_lengths()
        filled = self._compute(lambda: [fill.fill(*fixed, text, top, trained) for text in given])
        return filled[0] if one else filled

    @functools.cached_property
    def _decode_params(self) -> DecodeParams | None:
        config = self.model.config
        readable = config.generates and (config.tied or "heads_lm" in self.params)
        return generate.decoding_params(config, self.params, self.tokenizer) if readable else None  # pyright: ignore[reportArgumentType]

    def _stream(self, prompts: Sequence[str], how: GenerateOptions, cancel: CancelToken = NEVER) -> Any:
        return generate.stream(
            self.model,
            self.params,
            self.tokenizer,
            prompts,
            how,
            cancel=cancel,
            trained=self.watch_lengths(),
            decode_params=self._decode_params,
        )

    def generate(
        self,
        prompts: Any,
        *,
        tokens: int = 0,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        top_p_exclusive: bool = False,
        stop: str | Sequence[str] = (),
        seed: int = 0,
        batch: int = 16,
        truncate: bool = False,
        show: Callable[[int, str], object] = lambda number, text: None,
        cancel: CancelToken = NEVER,
    ) -> Any:
        """Continues a prompt with a GPT: {"prompt", "text", "tokens", "stopped": "end" | "stop" | "length"}; several
        give a list.

        Args:
            prompts: one text or several. An empty one starts behind the end-of-document token.
            tokens: the most tokens to generate for each prompt; 0: 64, or as many as the model has room for.
            temperature: 0: always the most probable token (greedy); 1: the model's own probabilities.
            top_k: sample from the k most probable tokens; 0: from all.
            top_p: sample from the most probable tokens that together reach this probability; 1: from all.
            top_p_exclusive: leave out the token with which top_p is reached, as GPT-2's code does.
            stop: a text or several: the generated text ends before the first of them.
            seed: of the random numbers; the same seed gives the same text.
            batch: prompts at a time.
            truncate: drop the first tokens of a prompt that is too long; the result counts them as "truncated".
            show: called with (number of the prompt from 0, new characters) as each text grows.
            cancel: stops the work early when it is triggered; the default never does.

        Raises:
            DataError: when the model is no GPT, a prompt does not fit it, or an option is out of range.
        """
        given, one = texts_of(prompts)
        how = options_of(
            GenerateOptions,
            tokens=tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            top_p_exclusive=top_p_exclusive,
            stop=stop,
            seed=seed,
            batch=batch,
            truncate=truncate,
        )
        texts = self.continue_prompts(given, how, show, cancel)
        return texts[0] if one else texts

    def continue_prompts(
        self,
        prompts: Sequence[str],
        how: GenerateOptions,
        show: Callable[[int, str], object] = lambda number, text: None,
        cancel: CancelToken = NEVER,
    ) -> list[GeneratedText]:
        """Returns the results of `generate` for several prompts; `how` holds its options."""
        return self._compute(lambda: generate.finish(self._stream(prompts, how, cancel), lambda part: show(*part)))

    def stream(
        self,
        prompt: str,
        *,
        tokens: int = 0,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        top_p_exclusive: bool = False,
        stop: str | Sequence[str] = (),
        seed: int = 0,
    ) -> Iterator[str]:
        """Continues a prompt with a GPT, and yields the new text in parts. Raises as `generate`, at the call.

        Example:
            for part in model.stream("Once upon a time"):
                print(part, end="", flush=True)

        Args:
            prompt: the text to continue.
            tokens: the most tokens to generate; 0: 64, or as many as the model has room for.
            temperature: 0: always the most probable token (greedy); 1: the model's own probabilities.
            top_k: sample from the k most probable tokens; 0: from all.
            top_p: sample from the most probable tokens that together reach this probability; 1: from all.
            top_p_exclusive: leave out the token with which top_p is reached, as GPT-2's code does.
            stop: a text or several: the generated text ends before the first of them.
            seed: of the random numbers; the same seed gives the same text.
        """
        how = options_of(
            GenerateOptions,
            tokens=tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            top_p_exclusive=top_p_exclusive,
            stop=stop,
            seed=seed,
            batch=1,
        )
        parts = self._compute(lambda: self._stream([prompt], how))

        def texts() -> Iterator[str]:
            # The mesh is set for one part at a time: between two of them the caller's own code runs.
            while (part := self._compute(lambda: next(parts, None))) is not None:
                yield part[1]

        return texts()

    def score(self, texts: Any, *, length: int = 0, stride: int = 0, batch: int = 8) -> TextScore:
        """Measures how well a run predicts text: {"loss", "perplexity", …}, a BERT's "pseudo_perplexity".

        Each text is a document of its own; the figures are over all of them together. The loss is in nats per token.
        `analysis.scoring.score` says what each family measures.

        Args:
            texts: one text or several.
            length: tokens of a window; 0: as in training. Not for an ELMo, which reads whole sentences.
            stride: new tokens in each window, the others being context; 0: all, so that windows do not overlap.
            batch: windows, or an ELMo's sentences, at a time.

        Raises:
            DataError: when the run cannot predict words, length or stride does not fit, or there is no token.
        """
        given, _ = texts_of(texts)
        return self.score_documents(given, length=length, stride=stride, batch=batch)

    def score_documents(
        self, documents: Any, *, length: int = 0, stride: int = 0, batch: int = 8, cancel: CancelToken = NEVER
    ) -> TextScore:
        """Returns the result of `score` for any iterable of documents, which are read one at a time."""
        if length > self.trained_length:
            logger.warning(
                f"windows of {length} tokens are longer than those of training, which had {self.trained_length}"
            )
        # A model that reads words has no windows: it reads sentences.
        length = length or (0 if self.run.text.reads_words else self.run.data.length)
        return self._compute(lambda: score(self.token_scorer(length, stride), documents, batch=batch, cancel=cancel))

    @property
    def forward_params(self) -> Params:
        """The parameters in the layout that forward passes read fastest here; `params` has a checkpoint's layout."""
        return self._compute(lambda: self._loaded.unstacked)

    def token_scorer(self, length: int = 0, stride: int = 0) -> TokenScorer:
        """Returns the object that predicts the tokens of texts (`analysis.scoring`); length and stride as in `score`,
        but length=0 is the model's length."""
        return token_scorer(
            self.model,
            self.forward_params,
            self.tokenizer,
            length=length,
            stride=stride,
            split_sentences=self.run.data.split_sentences,
        )

    # Looking inside

    def attention(
        self, text: str, second: str | None = None, *, layers: Numbers = None, heads: Numbers = None
    ) -> AttentionMaps:
        """Returns the attention maps of a text or of a pair of texts.

        Args:
            text: the text.
            second: the second text of a pair, which is laid out as in the model's tasks.
            layers: the number of a layer from 1, or several; None: all.
            heads: the number of a head from 1, or several; None: all.

        Raises:
            DataError: when the model has no attention or lacks a layer or head, or a text is empty or too long.
        """
        given = (self.model, self.params, self.tokenizer, text, second)
        maps = self._compute(lambda: attention_maps(*given, layers=layers, heads=heads))
        self.watch_lengths().check(len(maps["tokens"]))
        return maps

    def gates(self, text: str) -> WordGates:
        """Returns the gates of an ELMo's LSTMs at each word of a text, and the mixes of layers that its run learned.

        Args:
            text: read as one sentence.

        Raises:
            DataError: when the model is no ELMo, or the text has no word.
        """
        return self._compute(lambda: word_gates(self.model, self.params, self.tokenizer, text, self.run.head))

    def senses(
        self,
        word: str,
        texts: Any,
        senses: Any = None,
        *,
        ignore_case: bool = False,
        clusters: int = 0,
        adjust_anisotropy: bool = False,
        max_occurrences: int = 1000,
        seed: int = 0,
        batch: int = 64,
    ) -> WordSenses:
        """Returns the vectors of a word in its sentences at each layer, and how they part by sense, or by cluster.

        Args:
            word: one word, as the run splits text.
            texts: sentences; each occurrence of the word in them has a vector.
            senses: the sense that the word has in each text, a list of the same length; None: vectors are clustered.
            ignore_case: take the word in upper and lower case.
            clusters: the number of clusters where no senses are given; 0: from 2 to 10, by the largest silhouette.
            adjust_anisotropy: report also how far similarities lie above the mean cosine of two different words.
            max_occurrences: the most occurrences to compute; of more, a random sample.
            seed: of samples and clusters.
            batch: sentences at a time.

        Raises:
            DataError: when the word occurs less than twice, or the senses or clusters do not fit the texts.
        """
        given, _ = texts_of(texts)
        sentences = given_sentences(given, None if senses is None else as_list(senses, "senses"))
        how = options_of(
            SensesOptions,
            ignore_case=ignore_case,
            clusters=clusters,
            adjust_anisotropy=adjust_anisotropy,
            max_occurrences=max_occurrences,
            seed=seed,
            batch=batch,
        )
        fixed, trained = (self.model, self.forward_params, self.tokenizer), self.watch_lengths()
        return self._compute(lambda: word_senses(*fixed, sentences, word, how, trained=trained))

    # Tasks

    @functools.cached_property
    def _predictor(self) -> Predictor:
        return Predictor(self.folder, mesh=self._mesh, loaded=self._loaded)

    def predict(self, texts: Any) -> Any:
        """Predicts with a fine-tuned run: {"id", "prediction", "scores"}; several texts give a list.

        Args:
            texts: one string, or several texts. A text is a string, a pair (first, second) or a dict of columns named
                as in training; for tags also a list of words, for choices (text, [alternative, …]).

        Raises:
            ConfigError: when the run has no task.
            DataError: when a text does not fit the task.
        """
        predictor = self._predictor
        if isinstance(texts, str):
            return predictor([texts])[0]
        return predictor(as_list(texts, "texts"))

    def finetune(self, task: str = "classify", **options: Any) -> Path:
        """Fine-tunes a new run from this one, and returns its folder.

        Args:
            task: as for `contexture.finetune`.
            options: the other arguments of `contexture.finetune`, by name; `dir`, the new run's folder, is required.
        """
        assert self._finetune is not None, "made without a function that trains; use contexture.open"
        return self._finetune(self.folder, task, **options)
