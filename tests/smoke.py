"""A first sign of life from an installed package, with the standard library alone.

Run as a script where there is neither pytest nor a nats-server: in a fresh environment,
or on a platform for which a wheel was just built. A socket plays the server.
"""

from __future__ import annotations

import socket
import threading

import jsclient

INFO = b'INFO {"server_id":"S","version":"2.11.0","max_payload":1048576,"headers":true}'


def serve(listener: socket.socket) -> None:
    """Answers PINGs, and sends what is published back to the one subscription."""
    with listener, listener.accept()[0] as peer, peer.makefile("rb") as lines:
        peer.sendall(INFO + b"\r\n")
        for line in lines:
            words = line.split()
            if words[0] == b"PING":
                peer.sendall(b"PONG\r\n")
            elif words[0] == b"SUB":
                sid = words[-1]
            elif words[0] == b"PUB":
                payload = lines.read(int(words[-1]) + 2)
                head = b" ".join([b"MSG", words[1], sid, words[-1]])
                peer.sendall(head + b"\r\n" + payload)


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    url = f"nats://127.0.0.1:{listener.getsockname()[1]}"
    with jsclient.connect(url, allow_reconnect=False) as nc:
        echo = nc.subscribe("echo")
        nc.publish("echo", b"hello")
        msg = echo.next(timeout=10.0)
    if (msg.subject, msg.data) != ("echo", b"hello"):
        raise SystemExit(f"jsclient {jsclient.__version__} is broken: {msg!r} came")
    print(f"jsclient {jsclient.__version__} works")


if __name__ == "__main__":
    main()
