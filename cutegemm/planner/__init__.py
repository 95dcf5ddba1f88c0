"""Chooses a kernel for a problem on a GPU: families and configurations, one legality predicate, an analytic
model.

`plan` takes sizes and works without a GPU; `plan_problem` takes a normalised problem, as a call does.
"""

from cutegemm.planner.families import FAMILIES, PINNED, Family
from cutegemm.planner.legality import Refusal, refusal
from cutegemm.planner.model import Estimate, Model
from cutegemm.planner.pin import Pin, keeps_order, parse_pin
from cutegemm.planner.plan import Candidate, Plan, contiguous_problem, plan, plan_problem, said_of

__all__ = [
    "FAMILIES",
    "PINNED",
    "Candidate",
    "Estimate",
    "Family",
    "Model",
    "Pin",
    "Plan",
    "Refusal",
    "contiguous_problem",
    "keeps_order",
    "parse_pin",
    "plan",
    "plan_problem",
    "refusal",
    "said_of",
]
