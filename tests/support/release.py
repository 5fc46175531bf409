"""The chart, installed by real Helm on a test's API server, and what people ask there with kubectl."""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import required
from control_plane import ApiServer, programs

from legato_operator.kubernetes import settings as operator_settings

CHART = Path(__file__).parents[2] / "charts" / "legato"
_ROW = re.compile(r"(\S*)\s+\[(.*?)\]\s+\[(.*?)\]\s+\[(.*?)\]")


@dataclass(frozen=True)
class Tools:
    """helm and kubectl, as an administrator of one API server."""

    api: ApiServer
    kubeconfig: Path

    def run(self, program: str, *arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        path = _path(program)
        assert path is not None, program
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        options = {"capture_output": True, "text": True, "check": False, "timeout": 120}
        return subprocess.run([path, *arguments], input=stdin, env=environment, **options)

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """Returns its output. Fails with its errors when it fails."""
        done = self.run("kubectl", *arguments, stdin=stdin)
        assert done.returncode == 0, f"{' '.join(arguments)}: {done.stderr or done.stdout}"
        return done.stdout

    def install(self, release: str, namespace: str, *values: str) -> None:
        """A release, without waiting for pods that nobody starts here."""
        flags = [word for value in values for word in ("--set", value)]
        done = self.run("helm", "install", release, str(CHART), "--namespace", namespace, *flags)
        assert done.returncode == 0, done.stderr

    def settings(self, release: str, namespace: str) -> operator_settings.OperatorSettings:
        """Settings that a release's operator would read from its flags and environment."""
        status, deployment = self.api.call("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments/{release}")
        assert status == 200, deployment
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        parser = ArgumentParser()
        operator_settings.add_flags(parser)
        environment = {"LEGATO_NAMESPACE": namespace, "LEGATO_POD_NAME": f"{release}-0"}
        return operator_settings.read(parser.parse_args(container["args"][1:]), environment)

    def as_account(self, namespace: str, name: str) -> ApiServer:
        """The API server, as seen with a token of a ServiceAccount."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        status, answer = self.api.call("POST", path, {"spec": {"expirationSeconds": 3600}})
        assert status < 300, answer
        return replace(self.api, token=answer["status"]["token"])

    def rights(self, account: str, namespace: str) -> Mapping[str, set[str]]:
        """All verbs by resource (`resource.group/name` where only one object is meant) that an account has there."""
        command = ("auth", "can-i", "--list", "--namespace", namespace, "--as", f"system:serviceaccount:{account}")
        found: dict[str, set[str]] = {}
        for line in self.kubectl(*command).splitlines()[1:]:
            row = _ROW.fullmatch(line.rstrip())
            assert row is not None, line
            resource, _, names, verbs = row.groups()
            for name in names.split() or [""]:
                if resource:
                    found.setdefault(f"{resource}/{name}" if name else resource, set()).update(verbs.split())
        return found


@contextlib.contextmanager
def tools(api: ApiServer) -> Iterator[Tools]:
    """For as long as the API server lives."""
    with tempfile.TemporaryDirectory(prefix="legato-kubeconfig-") as scratch:
        kubeconfig = Path(scratch) / "kubeconfig"
        kubeconfig.write_text(api.kubeconfig())
        kubeconfig.chmod(0o600)
        yield Tools(api, kubeconfig)


def _path(program: str) -> str | None:
    """kubectl comes with the API server, perhaps."""
    folder = programs()
    if folder is not None and (folder / program).exists():
        return str(folder / program)
    return shutil.which(program)


_MISSING = [name for name in ("helm", "kubectl") if _path(name) is None]
NEEDED = pytest.mark.skipif(
    bool(_MISSING) and not required.EVERYTHING_RUNS, reason=f"no {' and '.join(_MISSING)} on the PATH"
)
