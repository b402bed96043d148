"""What a frozen backbone computes of a task's examples: once, before the first step."""
