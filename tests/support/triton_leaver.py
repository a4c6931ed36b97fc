"""A client to kill: opens a gRPC stream, asks for a long answer, says so, and reads it. Arguments: address, model."""

import sys
import time

from support.triton_client import GrpcStream

if __name__ == "__main__":
    stream = GrpcStream(sys.argv[1])
    stream.ask(sys.argv[2], "long", {"text_input": "import os", "max_tokens": 400, "min_tokens": 400, "stream": True})
    stream.next()
    print("reading", flush=True)
    time.sleep(60)
