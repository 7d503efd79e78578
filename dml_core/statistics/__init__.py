"""What repeats over seeds allow to say: intervals, paired differences, verdicts."""

from dml_core.statistics.summary import ArmSummary, Verdict, summarize
from dml_core.statistics.table import render_markdown

__all__ = ["ArmSummary", "Verdict", "render_markdown", "summarize"]
