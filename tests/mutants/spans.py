"""Faults in question answering (windows, labels, answers, scores) and in tagging within documents."""

from tests.mutants.row import mutants_of

_CUT = "data/tasks/encode/test_windows.py::"
_SLOW = f"{_CUT}test_windows_labels_and_places_are_those_of_the_slow_road"
_CONTEXT = f"{_CUT}test_the_published_rule_of_most_context"
_SHORT = f"{_CUT}test_a_short_context_is_one_window_and_a_wide_stride_skips_nothing"
_FILES = "data/tasks/read/test_span_files.py::"
_LABEL = f"{_FILES}test_every_label_points_at_its_answer"
_STORE = f"{_FILES}test_questions_are_stored_and_read_back_by_number"
_ANSWERS = "train/evaluation/test_spans.py::"
_N_BEST = f"{_ANSWERS}test_answers_are_those_of_the_slow_road"
_THRESHOLD = f"{_ANSWERS}test_a_threshold_moves_the_line_between_an_answer_and_none"
_SCORES = "train/evaluation/test_squad_metrics.py::"
_OFFICIAL = f"{_SCORES}test_hand_made_cases"
_BEST = f"{_SCORES}test_the_best_threshold_gives_what_it_promises"

SPANS = (
    *mutants_of(
        "data/tasks/encode/windows.py",
        ("span.stride-past-the-window", "first += min(size, stride)", "first += stride", _SHORT),
        ("span.context-by-the-end", "score > scores[inside]", "score >= scores[inside]", _SLOW),
        ("span.context-of-one-side", "np.minimum(left, size - 1 - left)", "left", _CONTEXT),
        ("span.half-an-answer", "holds = first <= start and end < first + size", "holds = first <= start", _SLOW),
        ("span.answer-not-moved", "_moved(start, end, before - first)", "_moved(start, end, before)", _SLOW),
        ("span.empty-tokens-touch", " & (places[:, 0] < places[:, 1]))", ")", _SLOW),
    ),
    *mutants_of(
        "data/tasks/store/span_store.py",
        ("span.second-separator", "1 + tokens + (tokens >= second)", "1 + tokens", _LABEL),
        ("span.context-stored-again", "if example.context not in contexts:", "if True:", _STORE),
    ),
    *mutants_of(
        "data/tasks/read/answers.py",
        ("span.any-place-will-do", " and context.startswith(one.text, one.start)", "",
         "data/tasks/read/test_span_files.py::test_training_needs_an_answer_at_its_place"),
        ("span.no-place-will-do", "one.start >= 0 and ", "",
         "data/tasks/read/test_span_files.py::test_training_needs_an_answer_at_its_place"),
    ),
    *mutants_of(
        "train/evaluation/spans.py",
        ("span.start-in-any-window", 'inside & (places["widest"][at] > 0) if name == "start" else inside', "inside",
         _N_BEST),
        ("span.answer-too-long", "& (length <= self.rules.answer_length)", "", _N_BEST),
        ("span.same-text-twice", "if text and text not in seen:", "if text:", _N_BEST),
        ("span.null-of-the-last-window", "min(self._null, null) if null == null", "null if null == null", _N_BEST),
        ("span.threshold-forgotten", "not null <= (self.rules.threshold or TIE)", "null > 0", _THRESHOLD),
    ),
    *mutants_of(
        "train/evaluation/squad_metrics.py",
        ("span.articles-stay", '_ARTICLES.sub(" ", plain)', "plain", _OFFICIAL),
        ("span.words-as-sets", "(Counter(words) & Counter(right)).total()", "len({*words} & {*right})", _OFFICIAL),
        ("span.empty-gold-counts", 'if normalised(text)] or [""]', 'if text] or [""]', _OFFICIAL),
        ("span.false-answers-are-free", "each.forced[which] - each.silent[which]", "each.forced[which]", _BEST),
        ("span.threshold-within-equals", " and following > each.null", "", _BEST),
        ("span.none-at-all-at-0", "if nulls else 0.0", "if not nulls else 0.0", _BEST),
    ),
)  # fmt: skip

_AROUND = "data/tasks/batch/test_document_context.py::"
_LAYOUT = f"{_AROUND}test_a_layout_is_that_of_the_slow_road"
_WITHIN = f"{_AROUND}test_a_store_is_laid_out_as_the_sentences_at_hand"
_CHUNKS = f"{_AROUND}test_a_chunk_with_its_neighbours_is_laid_out_as_the_whole_file"

TAGGING = (
    *mutants_of(
        "data/tasks/batch/document_context.py",
        ("context.not-balanced", "np.minimum(before, spare // 2)", "np.minimum(before, spare)", _LAYOUT),
        ("context.rest-is-lost", "np.minimum(after, spare - left)", "np.minimum(after, spare // 2)", _LAYOUT),
        ("context.within-a-word", "borders[inside] = read >= 0", "borders[inside] = True", _LAYOUT),
        ("context.room-on-the-left-is-lost",
         "    left = left_words[every, np.minimum(before, spare - right)]\n", "", _LAYOUT),
        ("context.words-end-before-the-border", "tags.read(edge + 1 - at_ends, inner)", "tags.read(edge, inner)",
         _LAYOUT),
        ("context.before-the-first-token", "np.maximum(edge - inner - at_ends, 0)", "edge - inner - at_ends", _WITHIN),
        ("context.is-tagged", "(place >= 0) & (place < own[:, None])", "(place >= 0)", _LAYOUT),
        ("context.neighbours-of-another-document", "takewhile(lambda each: _same_document(each, of), examples)",
         "examples", _CHUNKS),
        ("context.nearest-come-last", "[*before, *chunk][::-1], last, reach)[::-1]",
         "[*before, *chunk][::-1], last, reach)", _CHUNKS),
    ),
    *mutants_of(
        "data/tasks/store/document_offsets.py",
        ("context.file-goes-on-in-the-next", "np.append((file, int(documents[0])) != self._last,",
         "np.append(int(documents[0]) != (self._last or (0, -1))[1],", _WITHIN),
    ),
    *mutants_of(
        "data/tasks/store/example_store.py",
        ("context.makes-a-sentence-too-long", "self._own_tokens(numbers) + 2 > length",
         "self.tokens_of(numbers) + 2 > length", f"{_AROUND}test_rows_hold_sentences_with_all_of_their_context"),
        ("context.lengths-without-it", "if self.documents is not None:\n            return self.documents.lengths",
         "if False:\n            return self.documents.lengths",
         f"{_AROUND}test_rows_hold_sentences_with_all_of_their_context"),
    ),
    *mutants_of(
        "data/tasks/read/conll.py",
        ("conll.border-within-a-sentence", "if isinstance(cells, str | None):\n            if words or wrong:",
         "if isinstance(cells, str | None):\n            if (words or wrong) and cells is None:",
         f"{_AROUND}test_documents_of_conll_begin_with_docstart"),
        ("conll.no-newdoc", "(universal and _NEWDOC.match(line)) or", "",
         f"{_AROUND}test_documents_of_conllu_begin_with_a_comment"),
    ),
    *mutants_of(
        "models/heads/layer_mix.py",
        ("crf.context-in-the-chain", "mask_BL * (tags_BL >= 0), mask_BL)", "mask_BL, mask_BL)",
         "models/heads/test_layer_mix.py::test_a_chain_is_that_of_the_words_with_tags_wherever_they_stand"),
    ),
)  # fmt: skip
