"""Tasks in which a GPT writes the answer: reading comprehension, summaries, translations (Radford et al. 2019, sections
3.5 to 3.7).

Each returns its figures with their convention, and `answers`, a dict for each example:

    prompt      the text that the model read
    truncated   how many tokens were cut since the prompt was too long for the model: the prompt's first ones, but an
                article's last ones
    written     the text that the model wrote
    stopped     why it stopped, as in `TrainedModel.generate`
    answer      the part of it that is the answer, summary or translation
    references  the right ones
"""

import math
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any, Literal

from contexture.analysis.trained_model import TrainedModel
from contexture.analysis.zeroshot.conversations import Question
from contexture.analysis.zeroshot.prompts import fitting_summary_prompt, question_prompt, translation_prompts
from contexture.analysis.zeroshot.referenced_texts import NO_SHOTS, ReferencedTexts, Shots
from contexture.analysis.zeroshot.standard_error import standard_error, standard_errors
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError
from contexture.data.text.lines import sentences, split_lines
from contexture.train.evaluation.squad_metrics import text_scores

TOKENS = {"qa": 50, "summarize": 100, "translate": 128}
"""The most tokens to write for an example, by task."""
ROUGE = ("rouge1", "rouge2", "rougeL")
SUMMARY_SENTENCES = 3
SUMMARY_TOP_K = 2
BleuTokenizer = Literal["13a", "intl", "zh", "char", "none"]
"""The tokenizers of sacrebleu that need no download."""


def answer_questions(
    model: TrainedModel, questions: Sequence[Question], *, tokens: int = 0, batch: int = 16, cancel: CancelToken = NEVER
) -> dict[str, Any]:
    """Returns exact_match and f1 of a GPT's answers to questions about documents.

    If a question has several right answers there are also leave_one_out_…, as CoQA's script counts them.

    Args:
        model: an open GPT.
        questions: the questions.
        tokens: the most tokens of an answer; 0: 50.
        batch: prompts at a time.

    Raises:
        DataError: when there are no questions, the model is no GPT, or the tokens leave no room for a prompt.
    """
    prompts = [question_prompt(question) for question in questions]
    tokens = tokens or TOKENS["qa"]
    rows = _write(model, prompts, tokens, batch=batch, cancel=cancel, temperature=0.0, stop="\n")
    for row, question in zip(rows, questions, strict=True):
        row |= {"id": question.id, "answer": row["written"].strip(), "references": list(question.answers)}
        row["exact_match"], row["f1"] = text_scores(row["answer"], question.answers)
    figures = ("exact_match", "f1")
    result: dict[str, Any] = {"examples": len(rows), **{name: _mean(rows, name) for name in figures}}
    result["standard_errors"] = standard_errors({name: [row[name] for row in rows] for name in figures})
    convention = (
        f"greedy, at most {tokens} tokens; the answer is what is written before the first line end; exact_match and f1 "
        "as evaluate-v2.0.py of SQuAD, of several right answers the best"
    )
    if any(len(question.answers) > 1 for question in questions):
        left_out = [leave_one_out(row["answer"], row["references"]) for row in rows]
        for place, name in enumerate(("leave_one_out_exact_match", "leave_one_out_f1")):
            result[name] = math.fsum(own[place] for own in left_out) / len(rows)
            result["standard_errors"][name] = standard_error(own[place] for own in left_out)
        convention += (
            "; leave_one_out: as CoQA's script, which compares with all right answers but one, and takes the mean over "
            "the one that is left out"
        )
    return _finished(result, rows, convention)


def leave_one_out(answer: str, right: Sequence[str]) -> tuple[float, float]:
    """Returns (exact match, F1) as CoQA's script counts them: each right answer is left out in turn, the best score
    against the others is taken, and these are averaged."""
    scores = [text_scores(answer, [text]) for text in right]
    if len(scores) < 2:
        return text_scores(answer, right)
    exact, f1 = (
        math.fsum(max(own for n, own in enumerate(column) if n != out) for out in range(len(column))) / len(column)
        for column in zip(*scores, strict=True)
    )
    return exact, f1


def summarize(
    model: TrainedModel,
    articles: ReferencedTexts,
    *,
    tokens: int = 0,
    seed: int = 0,
    batch: int = 16,
    cancel: CancelToken = NEVER,
) -> dict[str, Any]:
    """Returns ROUGE, from 0 to 1, of the summaries that a GPT writes after `TL;DR:`.

    Args:
        model: an open GPT.
        articles: the articles, with their right summaries.
        tokens: the most tokens of a summary; 0: 100.
        seed: of the samples.
        batch: prompts at a time.

    Raises:
        DataError: as `answer_questions`.
    """
    from rouge_score.rouge_scorer import RougeScorer

    tokens = tokens or TOKENS["summarize"]
    room = _room(model, tokens)
    fitting = [fitting_summary_prompt(text, model.tokenizer, room) for text in articles.texts]
    prompts = [prompt for prompt, _ in fitting]
    rows = _write(model, prompts, tokens, batch=batch, cancel=cancel, top_k=SUMMARY_TOP_K, seed=seed)
    for row, (_, lost) in zip(rows, fitting, strict=True):
        row["truncated"] += lost
    scorer = RougeScorer([*ROUGE], use_stemmer=True)
    for row, right in zip(rows, articles.references, strict=True):
        row |= {"answer": first_sentences(row["written"]), "references": list(right)}
        row |= {name: float(own.fmeasure) for name, own in scorer.score_multi(right, row["answer"]).items()}
    result: dict[str, Any] = {"examples": len(rows), **{name: _mean(rows, name) for name in ROUGE}}
    result["standard_errors"] = standard_errors({name: [row[name] for row in rows] for name in ROUGE})
    convention = (
        f"{tokens} tokens by top-k {SUMMARY_TOP_K}, seed {seed}, after the article and a line TL;DR:; the summary is "
        f"the first {SUMMARY_SENTENCES} sentences, a line end ending one too; ROUGE: F of rouge-score with "
        "use_stemmer=True, which reads the letters a to z and digits alone, the mean over examples, of several "
        "references the best"
    )
    return _finished(result, rows, convention, "an article", "end")


def first_sentences(text: str, count: int = SUMMARY_SENTENCES) -> str:
    """Returns the first `count` sentences of a text, joined by spaces. A line end ends a sentence too."""
    cut = [" ".join(each.split()) for line in split_lines(text) for each in sentences(line.strip())]
    return " ".join([each for each in cut if each][:count])


def translate(
    model: TrainedModel,
    asked: ReferencedTexts,
    shown: Shots = NO_SHOTS,
    *,
    tokenize: BleuTokenizer = "13a",
    tokens: int = 0,
    batch: int = 16,
    cancel: CancelToken = NEVER,
) -> dict[str, Any]:
    """Returns BLEU, from 0 to 100, of the translations that a GPT writes after `sentence =`, and sacrebleu's signature.

    Args:
        model: an open GPT.
        asked: the sentences, with their right translations.
        shown: translated sentences that come before each one in its prompt.
        tokenize: sacrebleu's tokenizer; zh or char for Chinese translations.
        tokens: the most tokens of a translation; 0: 128.
        batch: prompts at a time.

    Raises:
        DataError: as `answer_questions`, and when there are fewer examples than are to be drawn.
    """
    from sacrebleu.metrics.bleu import BLEU

    prompts = translation_prompts(asked.texts, shown.examples, shown.count, shown.seed)
    tokens = tokens or TOKENS["translate"]
    rows = _write(model, prompts, tokens, batch=batch, cancel=cancel, temperature=0.0, stop="\n")
    for row, right in zip(rows, asked.references, strict=True):
        row |= {"answer": row["written"].strip(), "references": list(right)}
    # force: no advice about text that looks tokenised; the score is the same.
    bleu = BLEU(tokenize=tokenize, force=True)
    # sacrebleu wants a list of first references, one of second ones, …; texts with fewer have None there.
    score = bleu.corpus_score([row["answer"] for row in rows], [*map(list, zip_longest(*asked.references))])
    result = {"examples": len(rows), "bleu": float(score.score), "signature": str(bleu.get_signature())}
    convention = (
        f"greedy, at most {tokens} tokens; the prompt: {shown.count} × `sentence = translation`, then `sentence =`; "
        "the translation is what is written before the first line end; BLEU: sacrebleu's of the corpus, by the "
        "signature"
    )
    return _finished(result, rows, convention)


def _write(
    model: TrainedModel, prompts: Sequence[str], tokens: int, *, batch: int, cancel: CancelToken, **sampling: Any
) -> list[dict[str, Any]]:
    """Returns the text that a GPT writes after each prompt."""
    if not prompts:
        raise DataError("there are no examples to write for; give a file with one in each row")
    _room(model, tokens)
    texts = model.generate(list(prompts), tokens=tokens, truncate=True, batch=batch, cancel=cancel, **sampling)
    return [
        {"prompt": each["prompt"], "truncated": each["truncated"], "written": each["text"], "stopped": each["stopped"]}
        for each in texts
    ]


def _room(model: TrainedModel, tokens: int) -> int:
    """Returns how many tokens a prompt may have if `tokens` are to be written behind it."""
    config = model.model.config
    if not config.generates:
        raise DataError("only a GPT writes answers; this run is of another family")
    if tokens >= config.length:
        raise DataError(
            f"{tokens} tokens to be written leave no room for a prompt in the {config.length} that the model takes; "
            "give fewer: --tokens N"
        )
    return config.length - tokens


def _mean(rows: Iterable[dict[str, Any]], name: str) -> float:
    values = [row[name] for row in rows]
    return math.fsum(values) / len(values)


def _finished(
    result: dict[str, Any], rows: list[dict[str, Any]], convention: str, what: str = "a prompt", end: str = "beginning"
) -> dict[str, Any]:
    truncated = sum(row["truncated"] > 0 for row in rows)
    convention += f"; {what} that is too long for the model loses its {end} (truncated)"
    return {**result, "truncated": truncated, "convention": convention, "answers": rows}
