"""In place of a self-test's process: one that crashes, hangs, or says nothing or too little."""

import os
import signal
import sys
import time

match sys.argv[1]:
    case "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    case "hangs":
        time.sleep(600)
    case "locks nothing":
        told = sys.stderr if os.environ.get("UCX_LOG_FILE") == "stderr" else sys.stdout  # as UCX would
        print("[1.5] [node:1:0] ib_md.c:293  UCX  ERROR set max locked memory (ulimit -l)", file=told)
        print("UCX could not register memory", file=sys.stderr)
        sys.exit(2)
