"""The stand-in's GraphQL: the language as clients write it, and what is wrong in a 200."""

from __future__ import annotations

from typing import Any

import pytest
from graphql import GraphQLError

from tests.standins.runpod.client import Client
from tests.standins.runpod.graphql_text import Field, parse
from tests.standins.runpod.standin import StandIn


def test_a_query_is_read_with_aliases_arguments_and_variables() -> None:
    text = """
    # a comment
    query Named($id: String!, $n: Int) {
      mine: pod(input: {podId: $id, list: [1, -2.5, "a\\"b"], on: true, off: null, kind: ALL}) {
        id, runtime { ports { ip } }
      }
    }
    """
    kind, fields = parse(text, {"id": "x"})
    given = {"podId": "x", "list": [1, -2.5, 'a"b'], "on": True, "off": None, "kind": "ALL"}
    ports = Field("ports", "ports", {}, (Field("ip", "ip", {}, ()),))
    inner = (Field("id", "id", {}, ()), Field("runtime", "runtime", {}, (ports,)))
    assert (kind, fields) == ("query", (Field("pod", "mine", {"input": given}, inner),))


@pytest.mark.parametrize(
    "text", ["", "{", "{a", "{a}}", "query", "{a(}", "{a(b)}", "{a(b: )}", '{a(b: "c)}', "{%}"]
)
def test_what_is_no_query_is_refused(text: str) -> None:
    with pytest.raises(GraphQLError, match="Syntax Error"):
        parse(text, {})


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("{myself{", "GRAPHQL_PARSE_FAILED"),
        ("{nonsense}", "GRAPHQL_VALIDATION_FAILED"),
        ("{myself{nonsense}}", "GRAPHQL_VALIDATION_FAILED"),
        ('mutation{podTerminate(input:{podId:"none"})}', "RUNPOD"),
        ("mutation{podFindAndDeployOnDemand(input:{bidPerGpu: 1}){id}}", "BAD_USER_INPUT"),
    ],
)
def test_errors_come_in_a_200(runpod_on_paper: StandIn, query: str, code: str) -> None:
    answer = Client(runpod_on_paper)("POST", "/graphql", {"query": query})
    assert answer.status == 200
    assert answer.data["errors"][0]["extensions"]["code"] == code


def test_unknown_is_null_and_ended_is_null(runpod_on_paper: StandIn) -> None:
    ask = Client(runpod_on_paper)
    assert ask.graphql('{pod(input:{podId:"none"}){id}}') == {"data": {"pod": None}}
    pod = ask.rent()
    query = f'mutation{{podTerminate(input:{{podId:"{pod["id"]}"}})}}'
    assert ask.graphql(query) == {"data": {"podTerminate": None}}
    assert runpod_on_paper.control.live() == []


def test_who_may_ask_what(runpod_on_paper: StandIn) -> None:
    nobody = Client(runpod_on_paper, key="")
    types = nobody("POST", "/graphql", {"query": "{gpuTypes{id}}"})
    assert types.status == 200
    assert nobody("POST", "/graphql", {"query": "{myself{id}}"}).status == 401
    in_url = f"/graphql?api_key={runpod_on_paper.api_key}"
    assert nobody("POST", in_url, {"query": "{myself{id}}"}).status == 200
    assert all("api_key" not in request.path for request in runpod_on_paper.requests)
    runpod_on_paper.control.set(graphql_errors=1)
    answer: Any = Client(runpod_on_paper).graphql("{myself{id}}")
    assert answer["data"] == {"myself": None}
    assert "Something went wrong" in answer["errors"][0]["message"]
