"""A client to kill: opens a gRPC stream, asks for a long answer, says so, and reads it.

Arguments: address, model, number of tokens."""

import sys
import time

from support.triton_client import GrpcStream

if __name__ == "__main__":
    stream = GrpcStream(sys.argv[1])
    tokens = int(sys.argv[3])
    asked = {"text_input": "import os", "max_tokens": tokens, "min_tokens": tokens, "stream": True}
    stream.ask(sys.argv[2], "long", asked)
    stream.next()
    print("reading", flush=True)
    time.sleep(3600)
