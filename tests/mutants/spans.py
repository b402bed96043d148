"""Faults in question answering: windows, labels, answers, scores."""

from tests.mutants.row import mutants_of

_CUT = "data/tasks/spans/test_windows.py::"
_SLOW = f"{_CUT}test_windows_labels_and_places_are_those_of_the_slow_road"
_CONTEXT = f"{_CUT}test_the_published_rule_of_most_context"
_SHORT = f"{_CUT}test_a_short_context_is_one_window_and_a_stride_of_more_than_the_room_skips_nothing"
_FILES = "data/tasks/spans/test_files.py::"
_LABEL = f"{_FILES}test_every_label_points_at_its_answer"
_STORE = f"{_FILES}test_questions_are_stored_and_read_back_by_number"
_MISTAKE = f"{_FILES}test_a_mistake_is_one_clear_line"
_ANSWERS = "train/evaluation/test_spans.py::"
_N_BEST = f"{_ANSWERS}test_answers_are_those_of_the_slow_road"
_THRESHOLD = f"{_ANSWERS}test_a_threshold_moves_the_line_between_an_answer_and_none"
_SCORES = "train/evaluation/test_squad_metrics.py::"
_OFFICIAL = f"{_SCORES}test_hand_made_cases"
_BEST = f"{_SCORES}test_the_best_threshold_is_that_of_trying_each"

SPANS = (
    *mutants_of(
        "data/tasks/spans/windows.py",
        ("span.stride-past-the-window", "first += min(size, stride)", "first += stride", _SHORT),
        ("span.context-by-the-end", "score > scores[inside]", "score >= scores[inside]", _SLOW),
        ("span.context-of-one-side", "np.minimum(left, size - 1 - left)", "left", _CONTEXT),
        ("span.half-an-answer", "holds = first <= start and end < first + size", "holds = first <= start", _SLOW),
        ("span.answer-not-moved", "_moved(start, end, before - first)", "_moved(start, end, before)", _SLOW),
        ("span.empty-tokens-touch", " & (places[:, 0] < places[:, 1]))", ")", _SLOW),
    ),
    *mutants_of(
        "data/tasks/spans/token_places.py",
        ("span.second-separator", "1 + tokens + (tokens >= second)", "1 + tokens", _LABEL),
    ),
    *mutants_of(
        "data/tasks/spans/span_store.py",
        ("span.context-stored-again", "if example.context not in contexts:", "if True:", _STORE),
    ),
    *mutants_of(
        "data/tasks/spans/answers.py",
        ("span.any-place-will-do", "start < 0 or context[start : start + len(text)] != text", "start < 0", _MISTAKE),
    ),
    *mutants_of(
        "train/evaluation/spans.py",
        ("span.start-in-any-window", 'inside & (places["widest"][at] > 0) if name == "start" else inside', "inside",
         _N_BEST),
        ("span.answer-too-long", "& (length <= self.rules.answer_length)", "", _N_BEST),
        ("span.same-text-twice", "if text and text not in seen:", "if text:", _N_BEST),
        ("span.null-of-the-last-window", "min(self._null, null) if null == null", "null if null == null", _N_BEST),
        ("span.threshold-forgotten", "not null <= self.rules.threshold", "null > 0", _THRESHOLD),
    ),
    *mutants_of(
        "train/evaluation/squad_metrics.py",
        ("span.articles-stay", '_ARTICLES.sub(" ", plain)', "plain", _OFFICIAL),
        ("span.words-as-sets", "(Counter(words) & Counter(right)).total()", "len({*words} & {*right})", _OFFICIAL),
        ("span.empty-gold-counts", 'if normalised(text)] or [""]', 'if text] or [""]', _OFFICIAL),
        ("span.false-answers-are-free", "if each.has_answer else -1.0", "if each.has_answer else 0.0", _BEST),
    ),
)  # fmt: skip
