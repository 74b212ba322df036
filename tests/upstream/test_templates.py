"""URI templates: the examples of RFC 6570 for the forms that servers use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbay.upstream.templates import parse

VALUES = {"var": "value", "hello": "Hello World!", "path": "/foo/bar", "x": "1024", "y": "768", "empty": "", "who": "fred", "half": "50%"}

EXAMPLES = [
    # RFC 6570, section 1.2 and 3.2, with the values above.
    ("{var}", "value"),
    ("{hello}", "Hello%20World%21"),
    ("{half}", "50%25"),
    ("O{empty}X", "OX"),
    ("O{undef}X", "OX"),
    ("{x,y}", "1024,768"),
    ("{x,hello,y}", "1024,Hello%20World%21,768"),
    ("?{x,empty}", "?1024,"),
    ("?{x,undef}", "?1024"),
    ("?{undef,y}", "?768"),
    ("{+var}", "value"),
    ("{+hello}", "Hello%20World!"),
    ("{+path}/here", "/foo/bar/here"),
    ("here?ref={+path}", "here?ref=/foo/bar"),
    ("up{+path}{var}/here", "up/foo/barvalue/here"),
    ("{+x,hello,y}", "1024,Hello%20World!,768"),
    ("{+path,x}/here", "/foo/bar,1024/here"),
    ("X{#var}", "X#value"),
    ("X{#hello}", "X#Hello%20World!"),
    ("{#x,hello,y}", "#1024,Hello%20World!,768"),
    ("{#path,x}/here", "#/foo/bar,1024/here"),
    ("foo{#empty}", "foo#"),
    ("foo{#undef}", "foo"),
    ("X{.var}", "X.value"),
    ("X{.x,y}", "X.1024.768"),
    ("{.who,who}", ".fred.fred"),
    ("{/who}", "/fred"),
    ("{/who,who}", "/fred/fred"),
    ("{/var,x}/here", "/value/1024/here"),
    ("{/var,empty}", "/value/"),
    ("{/var,undef}", "/value"),
    ("{;who}", ";who=fred"),
    ("{;x,y}", ";x=1024;y=768"),
    ("{;x,y,empty}", ";x=1024;y=768;empty"),
    ("{;x,y,undef}", ";x=1024;y=768"),
    ("{?who}", "?who=fred"),
    ("{?x,y}", "?x=1024&y=768"),
    ("{?x,y,empty}", "?x=1024&y=768&empty="),
    ("{?x,y,undef}", "?x=1024&y=768"),
    ("{&who}", "&who=fred"),
    ("?fixed=yes{&x}", "?fixed=yes&x=1024"),
    ("{&x,y,empty}", "&x=1024&y=768&empty="),
    ("file:///{path*}", "file:///%2Ffoo%2Fbar"),
    ("plain://nothing", "plain://nothing"),
]


@pytest.mark.parametrize(("text", "uri"), EXAMPLES)
def test_the_examples_of_the_standard_expand_as_it_says(text: str, uri: str) -> None:
    """NAM-4: the URI that goes on the wire is the one that the server's template means (RFC 6570)."""
    template = parse(text)
    assert template is not None
    assert template.expand(VALUES) == uri


@pytest.mark.parametrize("text", ["{", "}", "a{b", "a}b", "{}", "{{x}}", "{a b}", "{!x}", "{a:3}", "{a,}", "{=x}", "{-opt|x}"])
def test_a_template_that_is_none_is_not_read(text: str) -> None:
    """SCH-3: what cannot be read costs that template only, so it must be told apart."""
    assert parse(text) is None


def test_what_names_the_resource_is_required_and_a_query_is_not() -> None:
    """NAM-4: without a variable of its path a template would name something else."""
    template = parse("repo://{owner}/{name}/files{/path*}{?ref,owner}{&more}")
    assert template is not None
    assert template.variables == ("owner", "name", "path", "ref", "more")
    assert template.required == ("owner", "name", "path"), "one that is in the path and in the query is needed for the path"
    assert template.schema["required"] == list(template.required)
    assert set(template.schema["properties"]) == set(template.variables)


@given(st.text(max_size=30))
def test_a_value_never_leaves_its_place(value: str) -> None:
    """SEC: a value cannot become another host, path or query than the template's."""
    template = parse("notes://about/{topic}?x=1")
    assert template is not None
    uri = template.expand({"topic": value})
    assert uri.startswith("notes://about/")
    assert uri.endswith("?x=1")
    assert not set(uri.removeprefix("notes://about/").removesuffix("?x=1")) & set("/?#[]@:&= ")
