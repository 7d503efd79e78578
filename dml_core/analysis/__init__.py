"""What repeats over seeds allow to say: estimates, verdicts, claims and history."""

from dml_core.analysis.summary import ArmSummary, Verdict, render_markdown, summarize

__all__ = ["ArmSummary", "Verdict", "render_markdown", "summarize"]
