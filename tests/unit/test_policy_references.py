"""However the names of a policy refer to each other, it is checked in a moment, and each loop is reported."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Gate, PolicyError
from headgate.policy.identity_problems import identity_problems, identity_sizes
from headgate.policy.problems import KnownNames

NAMES = [f"name{number}" for number in range(6)]
REFERENCES = st.dictionaries(st.sampled_from(NAMES), st.lists(st.sampled_from([*NAMES, "ip"]), max_size=4))


def problems_of(identities: dict[str, Any], by: str = "ip") -> list[str]:
    try:
        Gate({"version": 1, "identities": identities, "rules": [{"name": "a", "by": [by], "limits": "5/minute"}]})
    except PolicyError as error:
        return [str(problem) for problem in error.problems]
    return []


def leads_to(start: str, goal: str, members: dict[str, list[str]], seen: frozenset[str] = frozenset()) -> bool:
    return start == goal or any(
        leads_to(member, goal, members, seen | {start}) for member in members.get(start, ()) if member not in seen
    )


@given(REFERENCES)
def test_a_member_is_a_loop_where_it_leads_back(members: dict[str, list[str]]) -> None:
    identities = {name: {"first_of": names} for name, names in members.items()}
    known = KnownNames("identity", {*NAMES, "ip"})
    found = {path for path, message in identity_problems(identities, known, (), identity_sizes(identities))}
    assert found == {
        ("identities", name, "first_of", place)
        for name, names in members.items()
        for place, member in enumerate(names)
        if leads_to(member, name, members)
    }


def test_loops_of_many_identities_are_reported_in_a_moment() -> None:
    identities = {name: {"first_of": [other for other in NAMES if other != name]} for name in NAMES}
    problems = problems_of(identities, by="name0")
    assert len(problems) == 30
    assert "identities.name0.first_of[0]: 'name1' comes back to 'name0' itself" in problems


@pytest.mark.parametrize("by", ["ip", "name0"])
def test_a_long_chain_is_a_problem_and_no_recursion(by: str) -> None:
    chain = {f"name{number}": {"first_of": [f"name{number + 1}"]} for number in range(3000)}
    identities = {**chain, "name3000": {"header": "X"}}
    problems = problems_of(identities, by=by)
    assert len(problems) == 3000 - 15
    assert problems[0] == "identities.name0.first_of: makes a key of more than 16 parts, the most that a key has"
    assert problems_of({name: identities[name] for name in list(identities)[-16:]}, by="name2985") == []


def test_an_identity_leads_to_a_bounded_number_of_others() -> None:
    def levels(count: int) -> dict[str, Any]:
        names = [[f"level{level}-{number}" for number in range(10)] for level in range(count + 1)]
        upper = {name: {"first_of": names[level + 1]} for level in range(count) for name in names[level]}
        return {**upper, **{name: {"header": name} for name in names[count]}}

    assert problems_of(levels(3), by="level0-0") == []
    problems = problems_of(levels(12), by="level0-0")
    assert len(problems) == 9 * 10
    assert problems[-1] == "identities.level8-9.first_of: leads to more than 1,000 identities: name each of them once"


def test_the_first_of_many_unknown_names_are_compared_with_the_known_ones() -> None:
    rules = [{"name": f"rule-{number}", "by": ["ip"], "limits": "5/minute"} for number in range(500)]
    misspelt = [f"rule_{number}" for number in range(500)]
    with pytest.raises(PolicyError) as caught:
        Gate({"version": 1, "rules": rules, "rulesets": {"default": misspelt}})
    messages = [problem.message for problem in caught.value.problems]
    assert messages[0] == "no rule is named 'rule_0'; did you mean 'rule-0'?"
    assert messages[-1] == "no rule is named 'rule_499'"
    assert sum("did you mean" in message for message in messages) == 50
