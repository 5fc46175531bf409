"""`legato operator --check-no-services`, where the API server does not say whether services are left."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml


class _Refusing(BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"message": "inferenceservices is forbidden in namespace gone"}).encode()
        self.send_response(403)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def kubeconfig(tmp_path):
    """Of an API server that refuses everything."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        path, here = tmp_path / "kubeconfig", {"cluster": "it", "user": "it"}
        url = f"http://127.0.0.1:{server.server_port}"
        path.write_text(
            yaml.safe_dump(
                {
                    "clusters": [{"name": "it", "cluster": {"server": url}}],
                    "users": [{"name": "it", "user": {}}],
                    "contexts": [{"name": "it", "context": here}],
                    "current-context": "it",
                }
            )
        )
        yield path
        server.shutdown()
        thread.join()


def test_check_that_is_refused_says_how_to_uninstall_without_it(kubeconfig):
    """A watched namespace that was deleted took the operator's right to look there with it, for good."""
    outside = {key: value for key, value in os.environ.items() if key != "KUBERNETES_SERVICE_HOST"}
    images = ("--engine-image=engine:1", "--gateway-image=gateway:1")
    command = (sys.executable, "-m", "legato_cli.main", "operator", "--check-no-services", "--namespace=gone", *images)
    environ = outside | {"KUBECONFIG": str(kubeconfig), "LEGATO_NAMESPACE": "legato-system"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    assert "403: inferenceservices is forbidden in namespace gone" in done.stderr
    assert "`helm uninstall --no-hooks`" in done.stderr
