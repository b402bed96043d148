"""Where figures go beside metrics.jsonl: TensorBoard, and experiment trackers by `--log.to`."""
