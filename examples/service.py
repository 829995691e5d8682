"""A service: two workers share the requests, a client asks and meets every outcome.

Run it with `python examples/service.py`. It uses the server in NATS_URL, or starts one.
"""

import contextlib
import os

import jsclient


def divide(msg: jsclient.Msg) -> None:
    """Answers "a b" with a / b, or with a header that says what is wrong."""
    try:
        dividend, divisor = msg.data.split()
        result = int(dividend) / int(divisor)
    except (ValueError, ZeroDivisionError) as error:
        msg.respond(b"", headers={"Error": str(error)})
    else:
        msg.respond(f"{result:g}".encode())


def ask(nc: jsclient.Connection, subject: str, question: bytes) -> str:
    """The answer to a question, or why there is none."""
    try:
        answer = nc.request(subject, question, timeout=1.0)
    except jsclient.NoRespondersError:
        return "nobody offers this service"
    except jsclient.TimeoutError:
        return "nobody answered in time"
    if answer.headers and "Error" in answer.headers:
        return f"refused: {answer.headers['Error']}"
    return answer.data.decode()


def main() -> None:
    with contextlib.ExitStack() as stack:
        url = os.environ.get("NATS_URL")
        if not url:
            url = stack.enter_context(jsclient.server.run()).url
        for name in ("worker-1", "worker-2"):
            worker = stack.enter_context(jsclient.connect(url, name=name))
            worker.subscribe("divide", queue="workers", callback=divide)
            worker.flush()

        nc = stack.enter_context(jsclient.connect(url, name="client"))
        print("10 / 4:", ask(nc, "divide", b"10 4"))
        print("1 / 0:", ask(nc, "divide", b"1 0"))
        print("2 * 3:", ask(nc, "multiply", b"2 3"))


if __name__ == "__main__":
    main()
