"""The families, by name."""

from contexture.data.config import Family
from contexture.data.families.base import TextFamily
from contexture.data.families.bert import BertText
from contexture.data.families.elmo import ElmoText
from contexture.data.families.gpt import GptText
from contexture.data.families.vectors import VectorsText

# The key is the object's own `name`, so the two never disagree.
TEXT_FAMILIES: dict[Family, TextFamily] = {
    family.name: family for family in (BertText(), GptText(), ElmoText(), VectorsText())
}
