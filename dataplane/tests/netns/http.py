"""What a scraper, a browser and somebody who means harm do with the relay's HTTP server.

    http.py ADDRESS PORT get PATH...       each path's [status, content type, body], as Python's own client gets it
    http.py ADDRESS PORT parse             /metrics as python3-prometheus-client reads it: [sample, labels, value] and the types
    http.py ADDRESS PORT misuse            malformed and huge requests: the first line of each answer
    http.py ADDRESS PORT crowd COUNT       opens COUNT connections that ask nothing, says so, and holds them until standard input ends;
                                           then how many the server had closed
    http.py ADDRESS PORT slow              sends a byte every 0.5 s until it is cut off: after how many seconds
"""
import json, select, socket, sys, time, urllib.error, urllib.request

address, port, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]


def connect():
    return socket.create_connection((address, port), timeout=10)


def get(path):
    try:
        with urllib.request.urlopen(f"http://{address}:{port}{path}", timeout=10) as answer:
            return [answer.status, answer.headers["content-type"], answer.read().decode()]
    except urllib.error.HTTPError as error:
        return [error.code, error.headers["content-type"], error.read().decode()]


def parse():
    from prometheus_client.parser import text_string_to_metric_families
    families = list(text_string_to_metric_families(get("/metrics")[2]))
    return {
        "types": {family.name: family.type for family in families},
        "samples": [[sample.name, sample.labels, sample.value] for family in families for sample in family.samples],
    }


def first_line(request):
    with connect() as sock:
        answer = b""
        try:
            sock.sendall(request)
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            # The server had enough, and has answered already.
            pass
        try:
            while piece := sock.recv(65536):
                answer += piece
        except OSError:
            pass
        return answer.split(b"\r\n")[0].decode("latin-1")


def misuse():
    head = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n"
    requests = {
        "nothing": b"",
        "no http": b"hello\r\n\r\n",
        "zeros": bytes(4096),
        "tls": bytes.fromhex("16030100c8010000c40303") + bytes(190),
        "half a head": head,
        "long path": b"GET /" + b"x" * (1 << 20) + b" HTTP/1.1\r\n\r\n",
        "long header": head + b"a: " + b"x" * (1 << 20) + b"\r\n\r\n",
        "many headers": head + b"a: b\r\n" * 1000 + b"\r\n",
        "post": b"POST /metrics HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\n\r\nabc",
        "huge body": b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999\r\n\r\n" + bytes(1 << 20),
        "delete": b"DELETE / HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "up": b"GET /../../etc/passwd HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "two": head + b"\r\n" + head + b"\r\n",
        "old": b"GET /healthz HTTP/1.0\r\n\r\n",
        "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
        "two hosts": b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n",
        "another's name": b"GET /metrics HTTP/1.1\r\nhost: evil.example\r\n\r\n",
        "another's address": b"GET http://evil.example/metrics HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "head": b"HEAD / HTTP/1.1\r\nhost: localhost\r\n\r\n",
    }
    return {name: first_line(request) for name, request in requests.items()}


def crowd(count):
    socks = [connect() for _ in range(count)]
    print(json.dumps("open"), flush=True)
    sys.stdin.read()
    closed = 0
    for sock in socks:
        if select.select([sock], [], [], 0)[0]:
            closed += 1
    return closed


def slow():
    start = time.monotonic()
    with connect() as sock:
        try:
            while time.monotonic() < start + 30 and not select.select([sock], [], [], 0.5)[0]:
                sock.sendall(b"G")
        except (ConnectionResetError, BrokenPipeError):
            pass
    return time.monotonic() - start


result = {
    "get": lambda: [get(path) for path in sys.argv[4:]],
    "parse": parse,
    "misuse": misuse,
    "crowd": lambda: crowd(int(sys.argv[4])),
    "slow": slow,
}[what]()
print(json.dumps(result), flush=True)
