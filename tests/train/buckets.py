"""A fake object store over HTTP: as much of Google's JSON API and of S3 as tensorstore uses, in memory.

python buckets.py: prints its address, serves until its standard input ends.
"""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

LISTED = "/storage/v1/b/"
UPLOADED = "/upload/storage/v1/b/"


class Buckets(ThreadingHTTPServer):
    """The server. objects: (content, generation) by (bucket, name). requests: (method, name) of all so far. frozen:
    nothing is written or deleted any more, as if the client had been cut off."""

    daemon_threads = True

    def __init__(self, handler: type[Handler] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), handler or Handler)
        self.objects: dict[tuple[str, str], tuple[bytes, int]] = {}
        self.requests: list[tuple[str, str]] = []
        self.written = 0
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which tensorstore uses this server."""
        return {
            "TENSORSTORE_GCS_HTTP_URL": self.address,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "none",
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": "none",
            "AWS_SECRET_ACCESS_KEY": "none",
            "AWS_REGION": "us-east-1",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }

    def names(self, bucket: str) -> list[str]:
        with self.lock:
            return sorted(name for where, name in self.objects if where == bucket)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or every answer waits 40 ms for the client's acknowledgement
    wbufsize = -1
    server: Buckets

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, code: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _handle(self) -> None:
        url = urlsplit(self.path)
        options = {key: values[0] for key, values in parse_qs(url.query, keep_blank_values=True).items()}
        body = self._body()
        google = url.path.startswith((LISTED, UPLOADED))
        if google:
            bucket, _, name = url.path.removeprefix(UPLOADED).removeprefix(LISTED).partition("/o")
            name = unquote(name.removeprefix("/")) or options.get("name", "")
        else:
            bucket, _, name = unquote(url.path).lstrip("/").partition("/")
        with self.server.lock:
            self.server.requests.append((self.command, name))
            if bucket == "forbidden":
                self._answer(403, b"no access")
            elif self.command in ("POST", "PUT"):
                self._write(bucket, name, body, google)
            elif self.command == "DELETE":
                found = self.server.objects.pop((bucket, name), None)
                self._answer(204 if found or not google else 404)
            elif name:
                self._read(bucket, name, options)
            else:
                self._list(bucket, options, google)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

    def _write(self, bucket: str, name: str, body: bytes, google: bool) -> None:
        self.server.written += 1
        self.server.objects[bucket, name] = (body, self.server.written)
        shown = json.dumps({"name": name, "generation": str(self.server.written)}).encode() if google else b""
        self._answer(200, shown, ETag=f'"{self.server.written}"')

    def _read(self, bucket: str, name: str, options: dict[str, str]) -> None:
        if (bucket, name) not in self.server.objects:
            return self._answer(404)
        content, generation = self.server.objects[bucket, name]
        marks = {"ETag": f'"{generation}"', "x_goog_generation": str(generation)}
        if str(generation) in (options.get("ifGenerationNotMatch"), self.headers.get("If-None-Match", "").strip('"')):
            return self._answer(304, b"", **marks)
        asked = self.headers.get("Range")
        if asked is None or not content:
            return self._answer(200, content, **marks)
        first, _, last = asked.removeprefix("bytes=").partition("-")
        begin, end = int(first or 0), min(int(last) + 1 if last else len(content), len(content))
        span = f"bytes {begin}-{end - 1}/{len(content)}"
        return self._answer(206, content[begin:end], Content_Range=span, **marks)

    def _list(self, bucket: str, options: dict[str, str], google: bool) -> None:
        prefix = options.get("prefix", "")
        found = sorted(
            (name, value[0], value[1]) for (where, name), value in self.server.objects.items() if where == bucket
        )
        begin, end = options.get("startOffset", ""), options.get("endOffset", "\U0010ffff")
        found = [entry for entry in found if entry[0].startswith(prefix) and begin <= entry[0] < end]
        if google:
            items = [{"name": name, "size": str(len(data)), "generation": str(mark)} for name, data, mark in found]
            return self._answer(200, json.dumps({"items": items}).encode(), Content_Type="application/json")
        items = "".join(
            f'<Contents><Key>{escape(name)}</Key><Size>{len(data)}</Size><ETag>"{mark}"</ETag></Contents>'
            for name, data, mark in found
        )
        text = f"<ListBucketResult><Name>{bucket}</Name><KeyCount>{len(found)}</KeyCount>" + (
            f"<IsTruncated>false</IsTruncated>{items}</ListBucketResult>"
        )
        return self._answer(200, text.encode(), Content_Type="application/xml", x_amz_bucket_region="us-east-1")


if __name__ == "__main__":
    server = Buckets()
    print(server.address, flush=True)
    sys.stdin.read()
