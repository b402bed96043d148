"""One request type for each command: its options, with their help. Needs no jax."""

from contexture.requests.cleaning import CleanRequest
from contexture.requests.exchange import ExportRequest, ImportRequest, SlimRequest
from contexture.requests.inspection import (
    AttentionRequest,
    CompareRequest,
    LayersRequest,
    ProbeRequest,
    SensesRequest,
    ShowShardsRequest,
    StatusRequest,
)
from contexture.requests.queries import (
    EmbeddingRequest,
    EvaluationArgs,
    FillRequest,
    GenerationRequest,
    PredictionRequest,
    ScoreRequest,
)
from contexture.requests.training import (
    CheckRequest,
    CompletionRequest,
    FinetuneRequest,
    NoOptions,
    PlanRequest,
    PrepareRequest,
    RunRequest,
    TokenizerRequest,
)
from contexture.requests.vectors import NeighboursRequest, SimilarityRequest
from contexture.requests.zeroshot import ZeroshotRequest
from contexture.train.evaluation.request import several

__all__ = [
    "AttentionRequest",
    "CheckRequest",
    "CleanRequest",
    "CompareRequest",
    "CompletionRequest",
    "EmbeddingRequest",
    "EvaluationArgs",
    "ExportRequest",
    "FillRequest",
    "FinetuneRequest",
    "GenerationRequest",
    "ImportRequest",
    "LayersRequest",
    "NeighboursRequest",
    "NoOptions",
    "PlanRequest",
    "PredictionRequest",
    "PrepareRequest",
    "ProbeRequest",
    "RunRequest",
    "ScoreRequest",
    "SensesRequest",
    "ShowShardsRequest",
    "SimilarityRequest",
    "SlimRequest",
    "StatusRequest",
    "TokenizerRequest",
    "ZeroshotRequest",
    "several",
]
