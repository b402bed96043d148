"""Runs a frozen backbone once over a task's examples, before the first step."""
