"""A recorder that keeps nothing: it writes the ids it reads to a file and reports them as done.

    python recorder_process.py FILE [MODEL]

It dies at once over an interaction whose model is MODEL.
"""

import asyncio
import os
import sys
from pathlib import Path

import msgspec

from waltzrl.operations.online.recorder_protocol import RecorderReport, decode_exchange, read_frames


async def main(log, deadly):
    pipe = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(pipe), sys.stdin)
    report, texts = RecorderReport(), read_frames(pipe)
    settings = await anext(texts)
    print(f"pid {os.getpid()} {settings.decode()}", file=log, flush=True)
    async for text in texts:
        read = decode_exchange(text)
        if read.model in deadly:
            os.abort()
        print(read.id, file=log, flush=True)
        report.stored += 1
        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
        sys.stdout.flush()
    print("end", file=log)


if __name__ == "__main__":
    with Path(sys.argv[1]).open("a") as file:
        asyncio.run(main(file, sys.argv[2:]))
