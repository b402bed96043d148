"""Loggers in addition to metrics.jsonl: TensorBoard, and experiment trackers by `--log.to`."""
