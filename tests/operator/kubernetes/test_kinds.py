"""Paths of objects: a name that a manifest gives leads to an object of that kind and namespace, or to none."""

import urllib3

from legato_operator.api import kinds

SECRETS = "/api/v1/namespaces/team/secrets/"


def test_path_of_an_ordinary_object_is_its_name():
    assert kinds.path("Secret", "team", "a.b-token") == f"{SECRETS}a.b-token"


def test_no_name_leads_elsewhere():
    """The client resolves dots and takes what follows a question mark for a query."""
    for name in ("../../kube-system/secrets/x", "../pods?watch=true", "a?watch=true", "a#b", "a b"):
        sent = urllib3.util.parse_url(f"https://host{kinds.path('Secret', 'team', name)}")
        assert str(sent.path).startswith(SECRETS)
        assert str(sent.path).count("/") == SECRETS.count("/")
        assert sent.query is None
        assert sent.fragment is None
