"""The page at `/`: what runs here, and how to use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

import headgate
from headgate import core
from headgate.policy.compiled import ANY_TIER, Conditions, Rule
from headgate.policy.gate import AsyncGate
from headgate.policy.rule_costs import named_costs
from headgate.service.http.messages import HTML, ServiceRequest, ServiceResponse
from headgate.service.routes import GET, Route

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --dim: #5b6b7a; --paper: #fbfcfd; --line: #dde4ea; --soft: #eef2f5;
  --accent: #0b7a75; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --dim: #93a4b3; --paper: #10161c; --line: #2a3642;
  --soft: #19222b; --accent: #4fc3bb; } }
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .2rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
p.lead { margin-top: 0; color: var(--dim); } a { color: var(--accent); }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { text-align: left; vertical-align: top; padding: .45rem .8rem .45rem 0; border-bottom: 1px solid var(--line); }
th { font-weight: 600; white-space: nowrap; } code, pre { font: .88rem/1.5 ui-monospace, monospace; }
pre { background: var(--soft); border-left: 3px solid var(--accent); padding: .8rem 1rem; overflow-x: auto; }
.tag { font-size: .75rem; border: 1px solid var(--line); border-radius: .6rem; padding: 0 .5rem; margin-left: .4rem; }
@media (max-width: 40rem) {
  thead { display: none; } tr { display: block; padding: .6rem 0; border-bottom: 1px solid var(--line); }
  td { display: block; border: 0; padding: .1rem 0; } .rules td:nth-child(3)::before { content: "by "; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; }
}
"""


class Overview:
    """The page of a service; `routes` gives its endpoints, `scheme` is that of its address."""

    def __init__(self, gate: AsyncGate, routes: Callable[[], Sequence[Route]], scheme: str) -> None:
        self._scheme = scheme
        self._gate = gate
        self._routes = routes

    def show(self, request: ServiceRequest, suffix: str) -> ServiceResponse:
        """The page, with examples that use the host by which the page was requested."""
        host = dict(request.headers).get(b"host", b"127.0.0.1:8080").decode("latin-1")
        return ServiceResponse(200, HTML, page(self._gate, f"{self._scheme}://{host}", self._routes()).encode())


def page(gate: AsyncGate, base: str, routes: Sequence[Route]) -> str:
    """The page of a service that is reached under this URL."""
    policy = gate.policy
    rows = "\n".join(_row(rule) for rule in policy.rules)
    paths = "\n".join(_path(route) for route in routes)
    exempt = ", ".join(f"<code>{escape(_match(conditions))}</code>" for conditions in policy.exempt) or "nothing"
    rulesets = ", ".join(f"<code>{escape(name)}</code>" for name in policy.rulesets)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Headgate: {escape(policy.namespace)}</title><style>{_STYLE}</style></head><body>
<h1>Headgate</h1>
<p class="lead">{headgate.__version__}, {core.CORE} core, limits requests for <b>{escape(policy.namespace)}</b>.
{_states(gate)}</p>

<h2>Rules</h2>
<table class="rules"><thead><tr><th>Rule</th><th>For</th><th>Counted by</th><th>Limits</th></tr></thead><tbody>
{rows}
</tbody></table>
<p>Exempt: {exempt}. Rulesets: {rulesets}.</p>

<h2>Ask with a body</h2>
<pre>curl -s {escape(base)}/v1/check -d '{{"request": {{"method": "POST", "path": "/api/login",
  "client_ip": "203.0.113.9", "headers": {{"X-Tier": "pro"}}}}, "cost": 1}}'</pre>
<p>The answer says <code>allowed</code>, <code>remaining</code>, <code>retry_after</code> and each limit's numbers,
and gives the headers to send on. <code>{{"requests": [...]}}</code> asks for up to 1,000 at once.</p>

<h2>Ask from a gateway</h2>
<pre>curl -i {escape(base)}/check/default -H 'X-Forwarded-Method: GET' -H 'X-Forwarded-Uri: /api/search/cats' \\
  -H 'X-Forwarded-For: 203.0.113.9'</pre>
<p>200 lets the request pass, 429 refuses it, with RateLimit headers, Retry-After and a problem body. nginx asks
<code>/check-403/default</code>.</p>

<h2>What it answers</h2>
<table><thead><tr><th>Method</th><th>Path</th><th></th></tr></thead><tbody>
{paths}
</tbody></table>
</body></html>
"""


def _path(route: Route) -> str:
    """A row of the table of paths; a path that a browser can open is a link."""
    path = f"<code>{escape(route.path)}</code>"
    if route.methods == GET:
        path = f'<a href="{escape(route.path)}">{escape(route.path)}</a>'
    method, _, _ = route.name.partition(" ")
    return f"<tr><td>{method}</td><td>{path}</td><td>{escape(route.summary)}</td></tr>"


def _states(gate: AsyncGate) -> str:
    """The number of states; for a store that is a server of its own, its address instead."""
    stats = gate.stats()
    if stats.max_keys:
        return f"{stats.keys:,} of at most {stats.max_keys:,} states are held."
    return f"States are held by the server at <code>{escape(gate.store.shown)}</code>."


def _row(rule: Rule) -> str:
    tags = "".join(
        f'<span class="tag">{tag}</span>'
        for tag, is_set in (("default", rule.default), ("shadow", rule.shadow))
        if is_set
    )
    cost = f"<br>cost {escape(cost_text)}" if (cost_text := named_costs(rule.costs)) else ""
    by = ", ".join(rule.by) or "everyone together"
    return (
        f"<tr><td><b>{escape(rule.name)}</b>{tags}</td><td><code>{escape(_match(rule.conditions))}</code></td>"
        f"<td>{escape(by)}{cost}</td><td>{_limits(rule)}</td></tr>"
    )


def _limits(rule: Rule) -> str:
    lines = []
    for tier, limits in rule.limits.items():
        if tier == ANY_TIER and rule.is_tiered:
            continue
        text = escape("; ".join(str(named.limit) for named in limits))
        lines.append(f"{escape(tier)}: <code>{text}</code>" if tier else f"<code>{text}</code>")
    return "<br>".join(lines)


def _match(conditions: Conditions) -> str:
    """A rule's conditions as a short text."""
    methods = "|".join(sorted(conditions.methods))
    hosts = "|".join([*sorted(conditions.hosts), *("*" + parent for parent in conditions.parent_hosts)])
    headers = " ".join(f"{name}: {'|'.join(sorted(values)) if values else '*'}" for name, values in conditions.headers)
    paths = "|".join(conditions.paths)
    clients = "" if conditions.clients is None else f"from {conditions.clients}"
    entries = "" if conditions.entries is None else f"entries {conditions.entries}"
    return " ".join(part for part in (methods, hosts + paths, headers, entries, clients) if part) or "any request"
