"""Tagging with the document around each sentence, for task.kind=tag and data.context=document."""
