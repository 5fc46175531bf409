"""The limit of open files is raised as far as it goes, and said when that is too little."""

import subprocess
import sys

from legato_protocol.process.open_files import LEAST

CODE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from legato_protocol.process import open_files
from legato_protocol.settings.flags import SettingsError
try:
    print(open_files.raise_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
except SettingsError as error:
    print(error)
"""


def said(soft, hard):
    code = CODE.format(soft=soft, hard=hard)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_soft_limit_is_raised_to_the_hard_one():
    assert said(64, LEAST + 7) == f"{LEAST + 7} {LEAST + 7} {LEAST + 7}"


def test_too_low_a_hard_limit_is_named_with_what_is_needed():
    assert (
        said(16, 32) == f"the limit of open files is 32, and at least {LEAST} are needed: raise it (ulimit -n {LEAST})"
    )
