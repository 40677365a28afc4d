"""An explanation as text for people."""

from __future__ import annotations

from headgate.limits import units_of
from headgate.policy.descriptor import Descriptor
from headgate.policy.explain import Explanation, RuleVerdict
from headgate.policy.request import Request
from headgate.policy.rule_costs import named_costs
from headgate.policy.wait_field import wait_text


def explanation_text(subject: Request | Descriptor, explanation: Explanation) -> str:
    """The rules that apply, with their keys and limits, and for each other rule the reason why it does not."""
    lines = [_subject_text(subject)]
    if explanation.tier:
        lines.append(f"tier {explanation.tier}")
    if explanation.exempt:
        lines.append(f"exempt: {explanation.exempt}, so it passes uncounted")
    width = max(len(verdict.name) for verdict in explanation.verdicts)
    for verdict in explanation.verdicts:
        mark = "+" if verdict.applies else "-"
        lines.append(f"{mark} {verdict.name:{width}}  {verdict.reason}")
        if verdict.applies:
            lines.extend(f"  {'':{width}}  {line}" for line in _details(verdict))
    if not any(verdict.applies for verdict in explanation.verdicts) and not explanation.exempt:
        lines.append("no rule applies: it passes uncounted")
    return "\n".join(lines)


def _subject_text(subject: Request | Descriptor) -> str:
    if isinstance(subject, Descriptor):
        return f"a descriptor with {' > '.join(key for key, _ in subject.entries)}"  # values may be secrets
    return f"{subject.method} {subject.path}" + (f" from {subject.client_ip}" if subject.client_ip else "")


def _details(verdict: RuleVerdict) -> list[str]:
    by = " and ".join(verdict.counted_by) or "everyone together"
    if verdict.key is None:
        return [f"counted by {by}: an identity is missing, or was sent several times, so it is refused"]
    cost = f", cost {cost_text}" if (cost_text := named_costs(verdict.costs)) else ""
    limits = "; ".join(str(limit) for limit in verdict.limits)
    shadow = " (shadow: counted and reported, never refuses)" if verdict.shadow else ""
    lines = [f"counted by {by}: key {verdict.key}{cost}", f"limits {limits}{shadow}"]
    places = [str(limit) for limit in verdict.limits if not limit.is_rate]
    if places:
        lines.append(f"{'; '.join(places)}: the request is held until its response has ended, in leases; see reserve")
    if verdict.wait_us:
        lines.append(f"waits in line for up to {wait_text(verdict.wait_us)} before it is refused")
    unspecified = [unit for unit in units_of(verdict.limits) if not verdict.costs.get(unit)]
    if unspecified:
        lines.append(
            f"takes no {' or '.join(unspecified)} unless the caller states how many: the rule has no cost in them"
        )
    return lines
