"""The process that runs an untrusted tokenizer: bounded memory and time, requests on stdin, replies on stdout.

A request is one JSON line; a reply is one JSON line, for `encode` followed by that many bytes of 32-bit ids.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from array import array
from typing import Any

CPU_SECONDS = 10.0
"""Processor time of one request: a request of 1 MB takes about one second."""
PR_SET_PDEATHSIG = 1


def limit_process(memory: int) -> None:
    """Bound the address space, write no core file, and end with the parent."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides; the end of its pipe ends this process
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit(1)


def serve(memory: int) -> None:
    """Answer requests until stdin ends."""
    from tokenizers import Tokenizer  # slow to import; the parent may have no other use for it

    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    limit_process(memory)
    tokenizer: Any = None
    while line := requests.readline():
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # its signal ends the process, also inside native code
        rest = b""
        try:
            name, argument = json.loads(line)
            if name == "load":
                tokenizer = Tokenizer.from_str(argument)
                tokenizer.no_padding()
                tokenizer.no_truncation()
                reply: Any = tokenizer.get_vocab_size()
            elif name == "encode":
                found = [encoding.ids for encoding in tokenizer.encode_batch_fast(argument, add_special_tokens=False)]
                rest = b"".join(array("I", ids).tobytes() for ids in found)
                reply = [len(ids) for ids in found]
            elif name == "decode":
                reply = [tokenizer.decode(ids, skip_special_tokens=False) for ids in argument]
            elif name == "normalize":
                reply = argument if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(argument)
            else:
                reply = getattr(tokenizer, name)(*argument)
            content = json.dumps({"reply": reply, "rest": len(rest)})
        except MemoryError:
            os._exit(1)
        except BaseException as error:  # a panic of the library is no Exception
            content = json.dumps({"error": (str(error).splitlines() or [type(error).__name__])[0][:300]})
            rest = b""
        signal.setitimer(signal.ITIMER_PROF, 0)
        replies.write(content.encode() + b"\n" + rest)
        replies.flush()
