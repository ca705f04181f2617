"""The workloads, in the order in which they are reported."""

from __future__ import annotations

from benchmarks.workloads.agents import Agents, GenerativeAgents, LongChat, React, ShortChat
from benchmarks.workloads.documents import JsonDecode, JsonJumpForward
from benchmarks.workloads.questions import Hellaswag, InBatch, Mmlu, Rag
from benchmarks.workloads.shape import Workload
from benchmarks.workloads.thinking import (
    Judge,
    MultiChain,
    SkeletonOfThought,
    TreeOfThought,
    TreeSearch,
)

ALL: tuple[type[Workload], ...] = (
    Mmlu,
    Hellaswag,
    React,
    GenerativeAgents,
    TreeOfThought,
    SkeletonOfThought,
    Judge,
    JsonDecode,
    JsonJumpForward,
    ShortChat,
    LongChat,
    MultiChain,
    Rag,
    InBatch,
    Agents,
    TreeSearch,
)
