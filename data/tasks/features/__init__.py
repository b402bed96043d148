"""What a frozen backbone computes of a task's examples, kept on disk."""
